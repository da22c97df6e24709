// A trajectory as rows on a screen, with what each line is worth. Long ones come in windows: what is not asked for is
// neither fetched nor drawn.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill } = view;
  const WINDOW = 400;
  const GULP = 2000; // rows of one answer when all are asked for
  const PROMPT_ROWS = 8;
  const FAULTS = new Set(["syntax_error", "exception", "timeout", "killed", "overlong"]);

  const value = (name, text, kind = "", title = null) => h("span", { class: `value ${kind}`, title }, h("span", { class: "label" }, `${name} `), text);

  const tone = (number) => (typeof number !== "number" || number === 0 ? "" : number > 0 ? "up" : "down");

  const kindOf = (line) => view.words(line.kind) + (line.error_name ? `: ${line.error_name}` : "");
  const kindClass = (line) => (line.fault || FAULTS.has(line.kind) ? "fault" : line.kind === "answer" ? "answer" : "");

  const called = (line) => line.calls.length > 0 && h("span", { class: "calls" }, `${view.count(line.calls.length, "call", "calls")}: `,
    [...new Set(line.calls.map((call) => call.name + (call.error_name ? ` (${call.error_name})` : "")))].slice(0, 4).join(", "));

  // What a rescored session's line had before, below what it has now.
  const was = (line) => line.as_recorded && h("small", { class: `was${line.as_recorded.other_sign ? " other-sign" : ""}` }, `was ${view.signed(line.as_recorded.advantage)}`);

  const worth = (line) => h("div", { class: "worth" },
    h("button", { type: "button", class: `kind ${kindClass(line)}`, "aria-expanded": "false", data: { line: String(line.index) }, title: `line ${line.index}: show its tokens` }, kindOf(line)),
    value("reward", view.number(line.reward), tone(line.reward), line.reward_parts && line.reward_parts.map(view.tokens.part).join("; ")), value("to go", view.number(line.return_to_go)),
    value("adv.", [view.signed(line.advantage), was(line)], tone(line.advantage)),
    value("logp", view.logprob(line.logprob_sum), "", `${view.logprob(line.logprob_mean)} a token over ${view.count(line.tokens, "token", "tokens")}`),
    value("time", view.time(line.duration_s), "time"), called(line));

  const drawings = (line) => [...line.images.map((image) => view.image(image, `what line ${line.index} drew`)),
    line.images_left_out > 0 && h("small", { class: "image soft" }, `${view.count(line.images_left_out, "image", "images")} not shown here`)];

  const text = (row) => h("code", { class: "text" }, row.pieces.map((piece) => h("span", { class: piece.origin }, piece.text)));

  const mark = (row) => h("b", { class: "mark", title: row.origin }, row.mark);

  const HEADS = ["kind", "reward", "to go", "advantage", "logprob", "time"];
  const header = () => h("div", { class: "row header", "aria-hidden": "true" }, h("span"), h("span"),
    h("div", { class: "worth" }, HEADS.map((name, index) => h("span", { class: index ? "value" : "" }, name))));

  const create = (source, id, data, onLine) => {
    const rows = h("div", { class: "screen" });
    const prompt = h("div");
    const more = h("p", { class: "windows" });
    const element = h("div", { class: "transcript" }, header(), prompt, rows, more);
    const lines = {};
    const places = new Map();
    let [loaded, total, prompts, open] = [0, data.screen_total, 0, null];

    const draw = (row) => {
      const begun = row.lines.map((index) => lines[index]).filter(Boolean);
      const drawn = h("div", { class: `row ${row.origin}${begun.length ? " acted" : ""}` }, mark(row), text(row), begun.map(worth), begun.flatMap(drawings));
      for (const line of begun) places.set(line.index, drawn);
      return drawn;
    };

    const append = (part) => {
      Object.assign(lines, part.lines);
      for (let first = 0; first < part.screen.length; first += WINDOW) chunk(part.screen.slice(first, first + WINDOW));
      total = part.screen_total;
      folding();
      windows();
    };

    // What is out of sight is not laid out (see the style sheet), and its height is guessed from its number of rows.
    const chunk = (screen) => {
      const drawn = h("div", { class: "chunk" });
      for (const row of screen) {
        const given = row.origin === "prompt" && loaded === prompts;
        prompts += given ? 1 : 0;
        loaded += 1;
        (given ? prompt : drawn).append(draw(row));
      }
      drawn.style.setProperty("--rows", drawn.children.length);
      rows.append(drawn);
    };

    // A long prompt is the same in every rollout: it is folded away.
    const folding = () => {
      if (prompts <= PROMPT_ROWS || prompt.firstElementChild.tagName === "DETAILS") return;
      const details = h("details", { class: "more" }, h("summary", {}, `the prompt, ${prompts}${loaded === prompts ? " and more" : ""} rows`), [...prompt.children]);
      prompt.replaceChildren(details);
    };

    const windows = (note = "") => {
      if (loaded >= total) return fill(more, note);
      const button = (name, count) => h("button", { type: "button", class: "quiet", on: { click: () => load(count) } }, name);
      return fill(more, `${loaded.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} rows are shown. `,
        button(`Show ${Math.min(WINDOW, total - loaded)} more`, loaded + WINDOW), button("Show all", total), note && h("span", { role: "alert" }, ` ${note}`));
    };

    const load = async (count) => {
      try {
        while (loaded < Math.min(count, total)) {
          const part = await source.trajectory(id, loaded, Math.min(GULP, count - loaded));
          if (!part.screen.length) break;
          append(part);
        }
      } catch (error) {
        windows(`The rest can't be loaded: ${error.message}.`);
      }
    };

    // Every line begins in a row of its own or shares one, so that line K stands near row K or behind it.
    const reach = async (index) => {
      while (!places.has(index) && loaded < total) {
        const before = loaded;
        await load(Math.max(loaded + WINDOW, index + WINDOW));
        if (loaded === before) return;
      }
    };

    const close = () => {
      if (!open) return;
      open.strip.remove();
      const button = buttonOf(open.index);
      if (button) { button.setAttribute("aria-expanded", "false"); button.removeAttribute("aria-controls"); }
      places.get(open.index).classList.remove("asked");
      open = null;
    };

    const buttonOf = (index) => [...places.get(index).querySelectorAll("button.kind")].find((button) => button.dataset.line === String(index));

    const show = async (wanted, scroll) => {
      if (wanted === "") return close();
      const index = Number(wanted);
      if (open && open.index === index) return undefined;
      close();
      await reach(index);
      const place = places.get(index);
      if (!place) return windows(`There is no line ${index} in it.`);
      close();
      open = { index, strip: view.tokens.strip(source, id, lines[index], `tokens-${index}`, data.address) };
      place.after(open.strip);
      place.classList.add("asked");
      const button = buttonOf(index);
      button.setAttribute("aria-expanded", "true");
      button.setAttribute("aria-controls", `tokens-${index}`);
      if (scroll) bring(place);
      return undefined;
    };

    // Again when the rows around it have got their real heights.
    const bring = (place) => {
      const center = () => place.scrollIntoView({ block: "center" });
      center();
      requestAnimationFrame(() => requestAnimationFrame(center));
    };

    const walk = (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !event.target.matches("button.kind")) return;
      const all = [...element.querySelectorAll("button.kind")];
      const next = all[all.indexOf(event.target) + by];
      if (next) { event.preventDefault(); next.focus(); }
    };

    const clicked = (event) => {
      const row = event.target.closest(".row.acted");
      if (!row || (!event.target.closest("button") && String(window.getSelection()))) return;
      const button = event.target.closest("button.kind") || row.querySelector("button.kind");
      onLine(button.getAttribute("aria-expanded") === "true" ? "" : button.dataset.line);
    };

    element.addEventListener("click", clicked);
    element.addEventListener("keydown", walk);
    append(data);
    return { element, show };
  };

  view.transcript = { WINDOW, create, text, mark, tone };
})();
