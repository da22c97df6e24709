// The filters above the table. A list takes effect when it changes, a text field while it is typed.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;
  const narrow = window.matchMedia("(max-width: 760px)");
  const PAUSE_MS = 250;
  const fields = new Map();

  const TEXTS = [
    ["q", "Task or question", { type: "search", size: "18" }],
    ["step", "Step", { type: "text", size: "7", placeholder: "12 or 3-20", inputmode: "text" }],
    ["min_reward", "Reward from", { type: "text", inputmode: "decimal", size: "4" }],
    ["max_reward", "to", { type: "text", inputmode: "decimal", size: "4" }],
  ];
  const LISTS = [
    ["run", "Run", "runs"], ["model", "Model", "models"], ["dialect", "Dialect", "dialects"], ["split", "Split", "splits"], ["status", "Status", "statuses"], ["family", "Family", "families"],
    ["error", "Error", "errors"], ["stop", "Stopped by", "stops"], ["other_sign", "Another sign", "other_signs"],
  ];
  const ORDER = ["q", "run", "model", "dialect", "step", "split", "status", "family", "error", "stop", "other_sign"];

  const apply = (name, value, replace) => {
    if (view.state.now[name] === value) return;
    const unfollow = name === "step" ? { follow: "" } : {};
    view.state.go({ [name]: value, page: "1", ...unfollow }, { replace });
  };

  const textField = ([name, label, attributes]) => {
    let timer = 0;
    const input = h("input", { ...attributes, id: `filter-${name}`, autocomplete: "off", spellcheck: "false", on: {
      input: () => { clearTimeout(timer); timer = setTimeout(() => apply(name, input.value.trim(), true), PAUSE_MS); },
      change: () => { clearTimeout(timer); apply(name, input.value.trim(), true); },
    } });
    fields.set(name, input);
    return h("div", { class: "field" }, h("label", { for: `filter-${name}` }, label), input);
  };

  const listField = ([name, label]) => {
    const select = h("select", { id: `filter-${name}`, on: { change: () => apply(name, select.value, false) } });
    fields.set(name, select);
    return h("div", { class: "field" }, h("label", { for: `filter-${name}` }, label), select);
  };

  const options = (select, values, chosen) => {
    const all = chosen === "" || values.includes(chosen) ? values : [...values, chosen];
    const text = JSON.stringify(all);
    if (select.dataset.values !== text) {
      select.dataset.values = text;
      fill(select, h("option", { value: "" }, "any"));
      // The raw value is what the server knows; only the label is made visible.
      for (const value of all) { const option = h("option", {}, view.words(value)); option.value = value; select.append(option); }
    }
    if (select.value !== chosen) select.value = chosen;
  };

  const build = () => {
    const made = new Map([...TEXTS.map((field) => [field[0], textField(field)]), ...LISTS.map((field) => [field[0], listField(field)])]);
    const reset = h("button", { type: "button", class: "quiet", id: "reset", on: { click: () => view.state.go(view.state.cleared) } }, "Reset");
    const form = h("form", { class: "fields", role: "search", "aria-label": "Filters of the table", on: { submit: (event) => event.preventDefault() } },
      ORDER.map((name) => made.get(name)), h("div", { class: "pair" }, made.get("min_reward"), made.get("max_reward")), h("span", { id: "only-task" }), reset);
    fill(at("filters"), h("details", { class: "filters", open: !narrow.matches }, h("summary", { id: "filters-title" }, "Filters"), form));
  };

  const draw = (choices) => {
    const state = view.state.now;
    for (const [name, , key] of LISTS) {
      options(fields.get(name), choices[key].map(String), state[name]);
      const least = view.compared.NAMES.includes(name) ? 2 : name === "other_sign" ? 1 : 0;
      fields.get(name).parentElement.hidden = !state[name] && choices[key].length < least;
    }
    for (const [name] of TEXTS) {
      const input = fields.get(name);
      if (input.value.trim() !== state[name] && document.activeElement !== input) input.value = state[name];
    }
    const set = view.state.FILTERS.filter((name) => state[name] !== "").length;
    fill(at("filters-title"), set ? `Filters · ${set} set` : "Filters");
    at("reset").disabled = set === 0;
    fill(at("only-task"), state.task !== "" && view.state.link({ task: "", page: "1" }, { class: "chip", title: "remove this filter" },
      "only ", h("code", {}, state.task), " ×"));
  };

  // A field that lost the focus to the browser's history shows what the address says.
  const sync = () => { for (const [name] of TEXTS) if (fields.get(name).value.trim() !== view.state.now[name]) fields.get(name).value = view.state.now[name]; };

  view.filters = { build, draw, sync, focus: () => { at("filters").querySelector("details").open = true; fields.get("q").focus(); } };
})();
