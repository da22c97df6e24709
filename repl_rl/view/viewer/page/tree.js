// A group that was forked, as a tree: one row a rollout, one column a line, and each branch begins below the line after
// which its parent forked.
(() => {
  "use strict";
  const view = window.ReplView;
  const { h } = view;

  // Which rollout of `members` each one branched off, and where it begins. Places count within a group, and a group
  // begins with roots; a task may have had two groups in a step.
  const grow = (members) => {
    let base = 0;
    members.forEach((member, index) => {
      const { branch } = member;
      if (!branch && index && members[index - 1].branch) base = index;
      member.parent = branch && branch.line > 0 ? members[base + branch.parent] || null : null;
      member.children = [];
    });
    for (const member of members) if (member.parent) member.parent.children.push(member);
    for (const member of members) member.children.sort((one, other) => one.branch.line - other.branch.line);
  };

  const begins = (member) => (member.parent ? begins(member.parent) + member.branch.line : 0);
  const forksAfter = (member, from) => Math.min(...member.children.map((child) => child.branch.line).filter((line) => line > from));
  const isVoid = (member) => member.row.status === "void" || !member.lines.length;

  // What the segment from a line on is worth: what its own lines earned, and the mean of what follows its end.
  const worth = (member, from) => {
    const end = forksAfter(member, from);
    const own = member.lines.slice(from, end).reduce((sum, line) => sum + (line.reward || 0), 0);
    if (end === Infinity) return own;
    const following = [[member, end], ...member.children.filter((child) => child.branch.line === end).map((child) => [child, 0])];
    const values = following.filter(([next]) => !isVoid(next)).map(([next, line]) => worth(next, line));
    return own + (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);
  };

  const cell = (member, line, place) => {
    const isFirst = place === 0 || member.children.some((child) => child.branch.line === place);
    const forks = member.children.some((child) => child.branch.line === place + 1);
    const told = `line ${place}: ${line.text} (${view.words(line.kind)}, reward ${view.number(line.reward)})`;
    const link = view.state.link({ open: member.row.id, mode: "transcript", line: String(place), with: "" }, { title: told },
      h("span", { class: "hidden" }, `line ${place}, advantage `), view.signed(line.advantage));
    const value = isFirst && h("small", { title: "what the lines from here to the next fork earned, and what followed on average" }, `worth ${view.number(worth(member, place))}`);
    return h("td", { class: `value ${view.transcript.tone(line.advantage)}${line.fault ? " fault" : ""}${forks ? " forks" : ""}` }, link, value);
  };

  const row = (member, chosen) => {
    const { branch, parent } = member;
    const name = view.state.link({ open: member.row.id, mode: "transcript", line: "", with: "" }, member.row.id === chosen ? { "aria-current": "true" } : {}, `#${member.row.position}`);
    const start = begins(member);
    const told = parent ? `by ${branch.by} after line ${branch.line - 1} of #${parent.row.position}, weight ${view.number(branch.weight)}` : branch ? "from the prompt, instead of a fork that did not come about" : "";
    return h("tr", {}, h("th", { scope: "row" }, name, " ", view.verdict(member.row.status)), start > 0 && h("td", { class: "before", colspan: String(start), title: told }, h("span", { class: "hidden" }, told), h("span", { "aria-hidden": "true" }, "└")),
      member.lines.map((line, place) => cell(member, line, place)));
  };

  // The table, or null for a group in which nothing forked. `members`: row, branch and lines of each rollout, in order.
  view.tree = (members, chosen) => {
    if (!members.some((member) => member.branch)) return null;
    grow(members);
    const ordered = [];
    const follow = (member) => { ordered.push(member); member.children.forEach(follow); };
    members.filter((member) => !member.parent).forEach(follow);
    const width = Math.max(1, ...ordered.map((member) => begins(member) + member.lines.length));
    const heads = Array.from({ length: width }, (_, index) => h("th", { scope: "col" }, String(index)));
    return h("div", { class: "scroll tree", tabindex: "0", role: "region", "aria-label": "The tree of these rollouts" },
      h("table", {}, h("caption", { class: "soft" }, "Advantages of lines. A branch begins below the line after which its parent forked."),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "rollout"), heads)), h("tbody", {}, ordered.map((member) => row(member, chosen)))));
  };
})();
