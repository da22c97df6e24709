// What the page shows, as the address tells it. The address is the one place where it is kept: a copied link and the
// browser's history restore everything. The part behind # does it, so that an exported file needs no server.
(() => {
  "use strict";
  const view = window.ReplView;

  const embedded = document.getElementById("run-data"); // of an exported file; it stands before every script
  const DEFAULTS = Object.freeze({
    q: "", task: "", run: "", model: "", dialect: "", split: "", step: "", family: "", status: "", error: "", stop: "", other_sign: "", min_reward: "", max_reward: "",
    sort: "step", order: "desc", page: "1",
    open: "", mode: "transcript", line: "", with: "",
    curves: (embedded && embedded.dataset.curves) || "some", follow: "",
  });
  const FILTERS = ["q", "task", "run", "model", "dialect", "split", "step", "family", "status", "error", "stop", "other_sign", "min_reward", "max_reward"];
  const PER_PAGE = 50;
  const listeners = [];
  let current = DEFAULTS;

  const read = (hash) => {
    const state = { ...DEFAULTS };
    for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) if (name in DEFAULTS) state[name] = value;
    if (!/^[1-9]\d{0,8}$/.test(state.page)) state.page = "1";
    if (!/^\d{0,9}$/.test(state.line)) state.line = "";
    if (!["transcript", "group", "steps"].includes(state.mode)) state.mode = "transcript";
    return Object.freeze(state);
  };

  const format = (state) => {
    const named = Object.keys(DEFAULTS).filter((name) => state[name] !== DEFAULTS[name]).map((name) => [name, state[name]]);
    return `#${new URLSearchParams(named)}`;
  };

  // A link names what it changes. Its address follows the state, so that it can be copied and keeps the rest.
  const link = (changes, attributes, ...children) => {
    const element = view.h("a", attributes, ...children);
    element.changes = changes;
    element.setAttribute("data-go", "");
    return point(element);
  };

  const point = (element) => {
    element.setAttribute("href", format({ ...current, ...element.changes }));
    return element;
  };

  const show = (next) => {
    const before = current;
    current = next;
    for (const element of document.querySelectorAll("a[data-go]")) point(element);
    for (const listener of listeners) listener(next, before);
  };

  const go = (changes, { replace = false } = {}) => {
    const next = Object.freeze({ ...current, ...changes });
    const hash = format(next);
    if (hash !== format(current)) {
      const address = hash === "#" ? location.pathname + location.search : hash;
      history[replace ? "replaceState" : "pushState"](null, "", address);
    }
    show(next);
  };

  // The names and values that /api/trajectories takes.
  const query = (state, page = Number(state.page)) => {
    const named = FILTERS.filter((name) => state[name] !== "").map((name) => [name, state[name]]);
    return Object.fromEntries([...named, ["sort", state.sort], ["order", state.order],
      ["offset", String((page - 1) * PER_PAGE)], ["limit", String(PER_PAGE)]]);
  };

  const cleared = Object.freeze({ ...Object.fromEntries(FILTERS.map((name) => [name, ""])), page: "1", follow: "" });

  window.addEventListener("hashchange", () => show(read(location.hash)));
  document.addEventListener("click", (event) => {
    const clicked = event.target.closest ? event.target.closest('a[href^="#"]') : null;
    const ours = clicked && event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!ours || event.defaultPrevented) return;
    event.preventDefault();
    if (clicked.dataset.focus) view.at(clicked.dataset.focus).focus();
    else go(read(clicked.getAttribute("href")));
  });

  view.state = {
    FILTERS, PER_PAGE, cleared, query, go,
    get now() { return current; },
    link,
    start: () => { current = read(location.hash); },
    subscribe: (listener) => listeners.push(listener),
    changed: (next, before, names) => names.some((name) => next[name] !== before[name]),
  };
})();
