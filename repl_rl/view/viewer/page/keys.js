// Shortcuts. A letter is one only while no field has the focus.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h, fill, at } = view;

  const mode = (name) => () => view.state.now.open && view.state.go({ mode: name, line: "", with: "" });
  const KEYS = [
    ["j", "next trajectory of the table", () => view.pane.move(1)],
    ["k", "previous trajectory of the table", () => view.pane.move(-1)],
    ["t", "transcript of the open trajectory", mode("transcript")],
    ["g", "its group side by side", mode("group")],
    ["s", "its task over the steps, with a comparison", mode("steps")],
    ["/", "search a task or question", () => view.filters.focus()],
    ["?", "this list", () => dialog()],
  ];
  const OTHERS = [["Escape", "close the trajectory"], ["Enter", "open the chosen row, or the tokens and the reward of the chosen line"], ["↑ ↓", "from line to line of a transcript"]];

  const dialog = () => { if (!at("keys").open) at("keys").showModal(); };

  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || at("keys").open) return;
    if (event.key === "Escape" && view.state.now.open && !view.typing()) return view.pane.close();
    if (view.typing()) return undefined;
    const found = KEYS.find(([key]) => key === event.key);
    if (!found) return undefined;
    event.preventDefault();
    return found[2]();
  };

  view.keys = {
    build: () => {
      const rows = [...KEYS, ...OTHERS].map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)));
      fill(at("keys"), h("h2", { id: "keys-title" }, "Keyboard"), h("dl", {}, rows),
        h("form", { method: "dialog" }, h("button", { class: "quiet" }, "Close")));
      at("help").addEventListener("click", dialog);
      document.addEventListener("keydown", pressed);
    },
  };
})();
