// The bytes of tokens as visible text. A character that spans several tokens is shown as hexadecimal digits.

import { make } from "./dom.js";

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Return the bytes of hexadecimal digits, such as "e282ac".
export function bytesOf(hex) {
  return Uint8Array.from({ length: hex.length / 2 }, (_, i) => parseInt(hex.slice(2 * i, 2 * i + 2), 16));
}

// Return the hexadecimal digits of bytes.
export function hexOf(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Return the text of tokens, without special tokens; bytes that are not UTF-8 become U+FFFD.
export function textOf(tokens) {
  const hex = tokens.map((token) => (token.special ? "" : token.hex)).join("");
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytesOf(hex));
}

// Return the number of bytes of the character that starts at `at`; 0 if it is not valid UTF-8.
function characterLength(bytes, at) {
  const first = bytes[at];
  if (first < 0x80) return 1;
  const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  try {
    decoder.decode(bytes.subarray(at, at + length));
    return at + length <= bytes.length ? length : 0;
  } catch {
    return 0;
  }
}

// Split tokens [{hex, special}] into groups [{from, to, parts}]. A group is one token, or several that share
// characters. `parts` has, for each token, its stretches [{text} or {hex}].
export function grouped(tokens) {
  const owner = tokens.flatMap((token, i) => Array(token.hex.length / 2).fill(i));
  const bytes = bytesOf(tokens.map((token) => token.hex).join(""));
  const parts = tokens.map(() => []);
  const joined = new Set(); // indices of tokens that share a character with the next one
  const add = (i, kind, value) => {
    const last = parts[i].at(-1);
    if (last?.[kind]) last[kind] += value;
    else parts[i].push({ [kind]: value });
  };
  for (let at = 0; at < bytes.length; ) {
    const length = characterLength(bytes, at);
    const [first, last] = [owner[at], owner[at + Math.max(length, 1) - 1]];
    if (length && first === last) {
      const ascii = length === 1; // decoding each such byte would take most of the time
      add(first, "text", ascii ? String.fromCharCode(bytes[at]) : decoder.decode(bytes.subarray(at, at + length)));
    } else {
      for (let i = at; i < at + Math.max(length, 1); i++) {
        add(owner[i], "hex", bytes[i].toString(16).padStart(2, "0"));
      }
      for (let i = first; i < last; i++) joined.add(i);
    }
    at += Math.max(length, 1);
  }
  const groups = [];
  for (let from = 0; from < tokens.length; ) {
    let to = from + 1;
    while (joined.has(to - 1)) to++;
    groups.push({ from, to, parts: parts.slice(from, to) });
    from = to;
  }
  return groups;
}

// White space is kept, and CSS adds a mark that is not part of the text.
const MARKS = { " ": "space", "\t": "tab", "\n": "newline" };
const INVISIBLE = /[\p{C}\p{Z}]/u;

// Return nodes for the stretches of a token.
export function nodes(parts) {
  return parts.flatMap((part) => (part.hex ? [hexNode(part.hex)] : textNodes(part.text)));
}

function hexNode(hex) {
  return make("span", { className: "hex", textContent: hex.match(/../g).join(" ") });
}

function textNodes(text) {
  const made = [];
  let plain = /^\p{M}/u.test(text) ? "◌" : ""; // a combining mark needs something to stand on
  const flush = () => {
    if (plain) made.push(document.createTextNode(plain));
    plain = "";
  };
  for (const character of text) {
    if (!INVISIBLE.test(character)) {
      plain += character;
      continue;
    }
    flush();
    const mark = MARKS[character];
    const code = character.codePointAt(0).toString(16);
    made.push(make("span", { className: mark ?? "escape", textContent: mark ? character : `\\u{${code}}` }));
  }
  flush();
  return made;
}

// Return a token as one line of text for screen readers.
export function spoken(token) {
  if (token.hex === null) return `unused id ${token.id}`;
  return grouped([{ ...token }])[0]
    .parts[0].map((part) => (part.hex ? `bytes ${part.hex.match(/../g).join(" ")}` : part.text))
    .join(" ")
    .replaceAll("\n", " line end ")
    .replaceAll("\t", " tab ")
    .replace(/^ $/, "space");
}

// Return the nodes of a single token or candidate, without its neighbours.
export function alone(token) {
  if (token.hex === null) return [make("span", { className: "escape", textContent: `unused id ${token.id}` })];
  return token.hex ? nodes(grouped([token])[0].parts[0]) : [];
}
