// Chunks of deflated base64, inflated when needed, and helpers that make elements of texts.
const HELD = 40; // chunks that stay inflated
const inflated = new Map();

async function inflate(packed) {
  const coded = atob(packed);
  const bytes = new Uint8Array(coded.length);
  for (let at = 0; at < coded.length; at += 1) bytes[at] = coded.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  // Positions count a byte order mark like any other character.
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await new Response(stream).arrayBuffer());
}

function chunk(number) {
  if (!inflated.has(number)) {
    if (inflated.size >= HELD) inflated.delete(inflated.keys().next().value);
    inflated.set(number, inflate(document.getElementById(`chunk-${number}`).textContent));
  }
  return inflated.get(number);
}

// Control characters are shown as their codes: no text can hide or reorder what is next to it.
const CONTROL = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const visible = (text) => text.replace(CONTROL, (character) =>
  `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

// Every text reaches the page as a text node, never as markup.
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

const DASH = "–";
const grouped = (number) => number.toLocaleString("en-US");
const decimal = (number) => String(Number(number.toPrecision(4))).replace("-", "−");

// Scrolling boxes must be reachable by keyboard.
const scrolling = (box) => Object.assign(box, { tabIndex: 0 });

function swatch(style) {
  const made = element("span", { className: "swatch dot" });
  made.style.background = `var(--${style})`;
  return made;
}

function verdictWord([verdict, outcome]) {
  const word = verdict === "no answer" ? `no answer: ${outcome}` : verdict;
  const sign = { right: "✓ ", wrong: "✗ " }[verdict] ?? "";
  return element("span", { className: verdict === "right" ? "right" : verdict === "no gold" ? "" : "wrong" }, sign + word);
}
