// Elements and numbers. Everything that the page shows goes through `h`, which takes text as text: there is no way from
// data to markup, to a handler or to an address outside of the page.
(() => {
  "use strict";
  const view = (window.ReplView = window.ReplView || {});

  // The same characters as repl_rl.utils.text.visible: what steers a terminal or hides on a page.
  const UNSAFE =
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

  const escaped = (character) => {
    const code = character.codePointAt(0);
    if (code < 0x100) return code === 13 ? "\\r" : `\\x${code.toString(16).padStart(2, "0")}`;
    return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  };

  view.visible = (text) => String(text).replace(UNSAFE, escaped);

  const set = (element, name, value) => {
    if (value === null || value === undefined || value === false) return;
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "data") for (const [key, text] of Object.entries(value)) element.dataset[key] = text;
    else if (/^on/i.test(name) || (/^(href|src)$/i.test(name) && !String(value).startsWith("#")))
      throw new Error(`${name} is no attribute that the page may set`);
    else element.setAttribute(name, value === true ? "" : view.visible(value));
  };

  // h("a", { class: "task", href: "#..." }, "text", element, null)
  view.h = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) set(element, name, value);
    view.add(element, children);
    return element;
  };

  // A picture from data; nothing is fetched for it.
  view.image = (base64, alt) => {
    const element = view.h("img", { alt, class: "image" });
    element.src = `data:image/png;base64,${String(base64).replace(/[^A-Za-z0-9+/=]/g, "")}`;
    return element;
  };

  // A file of the run to keep: its address is one that the server gives to timelines, and no other.
  view.download = (address, text) => {
    if (!/^trace\/[0-9]{1,2}\/(step|eval)_[0-9]{5,9}\.json\.gz$/.test(address)) throw new Error("this is no timeline");
    const element = view.h("a", { download: true, title: "download it, and open it at ui.perfetto.dev" }, text);
    element.href = address;
    return element;
  };

  view.add = (element, children) => {
    for (const child of children.flat()) {
      if (child === null || child === undefined || child === false) continue;
      element.append(child instanceof Node ? child : document.createTextNode(view.visible(child)));
    }
  };

  view.fill = (element, ...children) => {
    element.replaceChildren();
    view.add(element, children);
  };

  view.at = (id) => document.getElementById(id);

  const DASH = "–";
  const trimmed = (value) => String(Number(value.toPrecision(3)));
  const plain = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : trimmed(value));

  view.number = (value) => (typeof value === "number" ? plain(value).replace("-", "−") : DASH);
  view.signed = (value) => (typeof value === "number" && value > 0 ? `+${plain(value)}` : view.number(value));
  view.logprob = (value) => (typeof value === "number" ? (value > -0.005 ? "0" : value.toFixed(2).replace("-", "−")) : DASH);
  view.count = (value, one, many) => `${Number(value).toLocaleString("en-US")} ${value === 1 ? one : many}`;
  view.time = (seconds) => {
    if (typeof seconds !== "number") return DASH;
    if (seconds < 1) return `${trimmed(1000 * seconds)} ms`;
    if (seconds < 60) return `${seconds.toFixed(2)} s`;
    return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  };
  // Halves go to the even digit, as Python rounds: a summary must not say 41.2% where a table says 41.3%.
  view.percent = (value) => {
    if (typeof value !== "number") return DASH;
    const tenths = 1000 * value;
    const isHalf = tenths % 1 === 0.5;
    return `${(isHalf ? (2 * Math.round(tenths / 2)) / 10 : tenths / 10).toFixed(1)}%`;
  };
  view.words = (name) => String(name).replaceAll("_", " ");

  const VERDICTS = { solved: "✓", "not solved": "✗", void: "∅" };
  view.verdict = (status) =>
    view.h("span", { class: `status ${status === "solved" || status === "not solved" ? status.replace(" ", "-") : "open"}` },
      view.h("span", { "aria-hidden": "true" }, `${VERDICTS[status] || "·"} `), status);

  // Whether the keyboard belongs to a field now, so that letters are text.
  view.typing = () => /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement ? document.activeElement.tagName : "");
})();
