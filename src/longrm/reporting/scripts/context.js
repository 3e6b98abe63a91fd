// A prompt, folded around what matters for the answer. All positions are UTF-16 units of one message.
const NEAR = 400; // units shown at both ends of a message, and around marked text
const STEP = 50000; // units that one click on a gap adds
const SMALL = 120; // smaller gaps are not folded

// Never cuts a surrogate pair in half.
const boundary = (text, at) => (at > 0 && at < text.length && text.charCodeAt(at) >> 10 === 0x37 ? at - 1 : at);

async function loadedMessage(message) {
  const parts = await Promise.all(message.parts.map(async ([start, part]) => {
    const text = typeof part === "number" ? await chunk(part) : part;
    return { start, end: start + text.length, text };
  }));
  return { ...message, parts, opened: [], shaded: [] };
}

// The ranges that are shown, disjoint and in order.
function shownRanges({ size, marks, shaded, opened }) {
  const decisive = [...marks, ...shaded.map(({ start, end }) => [start, end])];
  const wanted = [[0, NEAR], [size - NEAR, size], ...decisive.map(([start, end]) => [start - NEAR, end + NEAR]), ...opened];
  const ranges = [];
  for (const [start, end] of wanted.map(([a, b]) => [Math.max(a, 0), Math.min(b, size)]).sort((a, b) => a[0] - b[0])) {
    const last = ranges[ranges.length - 1];
    if (last && start <= last[1] + SMALL) last[1] = Math.max(last[1], end);
    else if (start < end) ranges.push([start, end]);
  }
  return ranges;
}

function textBetween(parts, from, to) {
  return parts.filter(({ start, end }) => start < to && end > from)
    .map(({ start, text }) => text.slice(boundary(text, Math.max(from - start, 0)), boundary(text, Math.min(to - start, text.length))))
    .join("");
}

function markedText({ parts, marks, shaded }, from, to) {
  const borders = [...marks.flatMap(([start, end]) => [start, end]), ...shaded.flatMap(({ start, end }) => [start, end])];
  const cuts = [...new Set([from, to, ...borders.filter((at) => from < at && at < to)])].sort((a, b) => a - b);
  return cuts.slice(1).map((end, index) => {
    const start = cuts[index];
    const kinds = marks.filter((mark) => mark[0] < end && mark[1] > start).map(([, , kind]) => kind);
    const text = textBetween(parts, start, end);
    const weighs = shaded.find((one) => one.start < end && one.end > start);
    if (weighs) return shadedPiece(text, weighs, kinds.includes("evidence"), end === weighs.end);
    if (kinds.includes("evidence")) return element("mark", { className: "evidence", tabIndex: -1 }, text);
    return kinds.length ? element("span", { className: "question" }, text) : visible(text);
  });
}

function gapBetween(message, start, end, redraw) {
  const size = `${grouped(end - start)} characters`;
  const button = element("button", { type: "button", className: "gap" }, `… ${size} …`);
  button.setAttribute("aria-label", `Show up to ${grouped(STEP)} of ${size} that are folded here`);
  button.addEventListener("click", () => {
    message.opened.push([start, Math.min(start + STEP, end)]);
    redraw();
  });
  return button;
}

function messageBox(message, redraw) {
  const long = message.opened.length || message.shaded.length;
  const text = element("div", { className: long ? "text all" : "text" });
  if (long) scrolling(text);
  let at = 0;
  for (const [start, end] of shownRanges(message)) {
    if (start > at) text.append(gapBetween(message, at, start, redraw));
    text.append(...markedText(message, start, end));
    at = end;
  }
  if (at < message.size) text.append(gapBetween(message, at, message.size, redraw));
  return text;
}

// The messages of a prompt. Opening a gap redraws its message only.
function promptView(messages) {
  return messages.map((message) => {
    const box = element("div", {});
    const draw = (focus) => {
      const heading = element("p", { className: "role" }, message.role);
      box.replaceChildren(heading, messageBox(message, () => draw(true)));
      if (focus) (box.querySelector("button.gap") ?? box.querySelector(".text")).focus();
    };
    message.draw = () => draw(false);
    message.draw();
    return box;
  });
}

// A button that goes from one piece of evidence to the next; empty without evidence.
function evidenceButton(box) {
  if (!box.querySelector("mark.evidence")) return [];
  let next = 0;
  const button = element("button", { type: "button" }, "Jump to the evidence");
  button.addEventListener("click", () => {
    const marks = [...box.querySelectorAll("mark.evidence")];
    const mark = marks[next % marks.length];
    next += 1;
    mark.focus({ preventScroll: true });
    mark.scrollIntoView({ block: "center" });
  });
  return [button];
}
