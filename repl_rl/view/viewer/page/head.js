// The head of the page: what run this is, what is wrong with its files, and whether it still moves.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;
  const FEW = 3;

  const listed = (notes) => h("ul", { class: "notes" }, notes.map((note) => h("li", {}, note)));

  const notes = (sentences) => {
    if (sentences.length <= FEW) return sentences.length ? [listed(sentences)] : [];
    const rest = sentences.slice(FEW);
    return [listed(sentences.slice(0, FEW)),
      h("details", { class: "more" }, h("summary", {}, `${view.count(rest.length, "more note", "more notes")} on the files`), listed(rest))];
  };

  // Figures of the last steps; a mark, and below a sentence, where one is out of its range.
  const health = (signs) => signs.length > 0 && [
    h("ul", { class: "health", "aria-label": "The last steps" }, signs.map((sign) => h("li", { class: sign.sentence ? "off" : "" }, h("span", { class: "soft" }, `${sign.name} `), sign.value, sign.sentence && h("b", { title: "out of its range" }, " !")))),
    signs.some((sign) => sign.sentence) && h("ul", { class: "notes" }, signs.filter((sign) => sign.sentence).map((sign) => h("li", {}, sign.sentence)))];

  const timelines = ({ timelines: shown, more_timelines: more }) => shown.length > 0 && h("p", { class: "timelines" },
    h("span", { class: "soft" }, "Timelines "), shown.flatMap(({ title, address }) => [view.download(address, title), " "]),
    more > 0 && `and ${more.toLocaleString("en-US")} before these, in trace/. `,
    h("span", { class: "soft" }, "Download one, and open it at ui.perfetto.dev."));

  const reading = ({ trajectories, files_done, files, complete }) =>
    complete ? "" : `reading ${files_done} of ${view.count(files, "file", "files")}, ${view.count(trajectories, "trajectory", "trajectories")} so far`;

  const ended = (sentence) => (/[.!?]$/.test(sentence) ? sentence : `${sentence}.`);

  // Said again only when it changed, or a screen reader would hear it every two seconds.
  const say = (text, kind) => {
    const live = at("live");
    if (live.textContent !== view.visible(text)) fill(live, text);
    live.className = `live ${kind}`;
  };

  let shown = "";
  view.head = {
    draw: (run) => {
      const text = JSON.stringify([run.name, run.summary, run.facts, run.health, run.notes, run.timelines]);
      if (text === shown) return;
      shown = text;
      document.title = view.visible(`${run.name} · repl_rl`);
      fill(at("name"), run.name);
      fill(at("alone"), run.name);
      fill(at("summary"), run.summary.map(ended).join(" "));
      fill(at("facts"), run.facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
      fill(at("health"), health(run.health));
      fill(at("timelines"), timelines(run));
      fill(at("notes"), notes(run.notes));
    },
    live: (run, embedded) => {
      if (embedded) return say("exported file, does not change", "still");
      const state = run.live ? `${run.state}; follows as it writes` : run.state;
      return say([state, reading(run.index)].filter(Boolean).join(" · "), run.live ? "moving" : "still");
    },
    lost: (message, wait_s) => say(`${message}; trying again every ${wait_s} s`, "lost"),
  };
})();
