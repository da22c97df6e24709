// What the page shows, as the address tells it. The address is the one place where it is kept: a copied link and the
// browser's history restore everything. The part behind # does it, so that an exported file needs no server.
(() => {
  "use strict";
  const view = window.ReplView;

  const DEFAULTS = Object.freeze({
    q: "", task: "", split: "", step: "", family: "", status: "", error: "", stop: "", min_reward: "", max_reward: "",
    sort: "step", order: "desc", page: "1",
    open: "", mode: "transcript", line: "", with: "",
    curves: "some", follow: "",
  });
  const FILTERS = ["q", "task", "split", "step", "family", "status", "error", "stop", "min_reward", "max_reward"];
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

  const show = (next) => {
    const before = current;
    current = next;
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
    const link = event.target.closest ? event.target.closest('a[href^="#"]') : null;
    const ours = link && event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
    if (!ours || event.defaultPrevented) return;
    event.preventDefault();
    if (link.dataset.focus) view.at(link.dataset.focus).focus();
    else go(read(link.getAttribute("href")));
  });

  view.state = {
    FILTERS, PER_PAGE, cleared, query, go,
    get now() { return current; },
    href: (changes) => format({ ...current, ...changes }),
    start: () => { current = read(location.hash); },
    subscribe: (listener) => listeners.push(listener),
    changed: (next, before, names) => names.some((name) => next[name] !== before[name]),
  };
})();
