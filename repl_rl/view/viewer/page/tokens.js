// The token strip under a line: each token with the sampler's log-probability, shaded by how unlikely it was.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill } = view;
  const DARKEST = 4; // nats: a token of 2% and less has the full shade

  const SPACES = { " ": "␣", "\n": "↵", "\t": "⇥" };
  const readable = (text) => view.visible(text).replace(/[ \n\t]/g, (space) => SPACES[space]);

  const said = (token) => {
    if (!token.sampled) return "masked: written by the interpreter, no part of the loss";
    if (typeof token.logprob !== "number") return "sampled, no log-probability stored";
    return `log-probability ${token.logprob.toFixed(4)}, probability ${(100 * Math.exp(token.logprob)).toPrecision(3)}%`;
  };

  const chip = (token) => {
    const name = token.text === null ? `id ${token.id}` : readable(token.text) || "(empty)";
    const element = h("li", { class: `token ${token.sampled ? "sampled" : "masked"}`, title: `${said(token)}; id ${token.id}` },
      h("code", { class: token.text === null ? "soft" : "" }, !token.sampled && h("b", { class: "mark", "aria-hidden": "true" }, "‹ "), name),
      h("small", {}, token.sampled ? view.logprob(token.logprob) : "masked"));
    const shade = token.sampled && typeof token.logprob === "number" ? Math.min(1, -token.logprob / DARKEST) : 0;
    element.style.setProperty("--shade", `${Math.round(55 * Math.max(0, shade))}%`);
    return element;
  };

  const sentence = (line) => {
    const state = { true: "it changed the session's names", false: "it changed no name of the session" }[String(line.state_changed)];
    const calls = line.calls.map((call) => `${call.name}${call.error_name ? ` raised ${call.error_name}` : ""} (${view.time(call.duration_s)})`);
    return [`Line ${line.index}: ${view.count(line.tokens, "token", "tokens")}`, `log-probability ${view.logprob(line.logprob_sum)}, ${view.logprob(line.logprob_mean)} a token`,
      state, calls.length ? `called ${calls.join(", ")}` : null].filter(Boolean).join("; ") + ".";
  };

  // What the reward is made of, and what the limits of the shaping left of each part.
  const part = ({ source, amount, earned, limits }) => `${source} ${view.signed(amount)}`
    + (limits.length ? ` (${[`earned ${view.signed(earned)}`, ...limits.map(([name, left]) => `after ${name} ${view.signed(left)}`)].join(", ")})` : "");

  const rescored = (line) => line.as_recorded && h("p", { class: "recorded" }, `Advantage ${view.signed(line.advantage)}, recorded ${view.signed(line.as_recorded.advantage)}`,
    line.as_recorded.other_sign && h("b", {}, ", of another sign"), `; reward ${view.signed(line.reward)}, recorded ${view.signed(line.as_recorded.reward)}.`);

  // What went on from before the line and after it came to.
  const valued = (line) => line.worth && h("p", { class: "valued" }, line.worth);

  // Commands that go on from before the line.
  const goOn = (line, address) => h("details", { class: "go-on" }, h("summary", {}, "Another line here"),
    ["play", "rollout"].map((name) => h("p", {}, h("code", {}, `repl-rl ${name} --from '${address}' --line ${line.index}${name === "rollout" ? " -n 8 --out other.jsonl" : ""}`))));

  const paid = (line) => line.reward_parts && h("div", { class: "paid" }, h("p", { class: "soft" }, `Reward ${view.signed(line.reward)}:`),
    h("ul", {}, line.reward_parts.map((each) => h("li", {}, part(each)))));

  // What the line asked a language model.
  const asked = (line) => line.subcalls.length > 0 && h("div", { class: "asked" },
    h("p", { class: "soft" }, `Asked ${view.count(line.subcalls.length + line.subcalls_left_out, "question", "questions")}:`),
    h("ol", {}, line.subcalls.map((call) => h("li", {}, h("code", { class: "prompt" }, call.prompt), " → ", h("code", {}, call.text),
      h("span", { class: "soft" }, ` ${call.cost}, ${view.time(call.duration_s)}`)))),
    line.subcalls_left_out > 0 && h("p", { class: "soft" }, `${view.count(line.subcalls_left_out, "question", "questions")} not shown here`));

  view.tokens = {
    part,
    // An element that fills itself; `line` is the line's record.
    strip: (source, id, line, elementId, address) => {
      const body = h("div", { class: "soft" }, "Loading the tokens.");
      const element = h("div", { class: "strip", id: elementId, role: "region", "aria-label": `Tokens of line ${line.index}` }, h("p", {}, sentence(line)), rescored(line), valued(line), paid(line), asked(line), address && goOn(line, address), body);
      source.tokens(id, line.index).then(
        ({ tokens }) => {
          const masked = tokens.some((token) => !token.sampled);
          fill(body, h("ol", { class: "tokens" }, tokens.map(chip)),
            h("p", { class: "soft" }, "The darker, the less likely the token was to the policy that sampled it.", masked && " ‹ masked tokens were written by the interpreter and take no part in the loss."));
        },
        (error) => fill(body, `The tokens can't be shown: ${error.message}.`),
      );
      return element;
    },
  };
})();
