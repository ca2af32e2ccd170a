// A row of tokens to inspect with the pointer or the arrow keys. A click or Enter holds a token, or calls
// `onChoose(index)`.

import { make } from "./dom.js";
import { grouped, nodes, textOf } from "./pieces.js";

let strips = 0;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const WORD = /^ \S{0,30}$/u;

const made = new WeakMap();

// Return a token as strips show it, with a class name and with label(token), which is spoken. A token that is shown
// again in the same way gives the same object, so that it is not drawn again.
export function shown(token, level, label) {
  let item = made.get(token);
  if (item?.level !== level) {
    item = { ...token, level, label: label(token) };
    made.set(token, item);
  }
  return item;
}

// `onShow(index)` is called when another token is pointed at or focused.
export class Strip {
  constructor(label, onShow, onChoose) {
    this.id = `strip-${++strips}`;
    this.element = make("div", { className: "strip", role: "listbox", "aria-label": label, hidden: true });
    this.onShow = onShow;
    this.onChoose = onChoose;
    this.tokens = []; // as last set
    this.spans = [];
    this.drawn = []; // {to, node} of each group: the index after its last token, and its element
    this.current = 0; // the only token that Tab reaches
    this.held = this.shown = -1;
    for (const [type, action] of [
      ["pointerover", (event) => event.pointerType !== "touch" && this.held < 0 && this.show(this.indexOf(event))],
      ["click", (event) => this.toggle(this.indexOf(event))],
      ["focusin", (event) => this.focused(this.indexOf(event))],
      ["keydown", (event) => this.move(event)],
    ]) {
      this.element.addEventListener(type, action);
    }
  }

  // Show tokens made by `shown`. The same objects at the beginning keep their elements.
  set(tokens) {
    const focused = this.element.contains(document.activeElement);
    let same = 0;
    while (same < tokens.length && tokens[same] === this.tokens[same]) same++;
    // The last token that stays may now share a character with the next.
    const kept = Math.max(this.drawn.filter(({ to }) => to <= same).length - 1, 0);
    for (const { node } of this.drawn.splice(kept)) {
      if (node.previousSibling?.nodeName === "WBR") node.previousSibling.remove();
      node.remove();
    }
    const start = this.drawn.at(-1)?.to ?? 0;
    this.spans.length = start;
    for (const { from, to, parts } of grouped(tokens.slice(start))) {
      this.append(tokens.slice(start + from, start + to), parts);
    }
    this.tokens = tokens;
    const [letter] = /\p{L}/u.exec(textOf(tokens)) ?? [""];
    this.element.dir = RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
    this.element.hidden = tokens.length === 0;
    if (this.held >= start) this.hold(this.held < tokens.length ? this.held : -1);
    this.reach(Math.min(this.current, tokens.length - 1));
    if (focused) this.spans[this.current]?.focus();
  }

  // Add tokens that share characters, with their parts.
  append(tokens, parts) {
    const spans = tokens.map((token, i) => this.span(token, this.spans.length + i, parts[i]));
    this.spans.push(...spans);
    let node = spans[0];
    if (spans.length > 1) {
      const text = textOf(tokens);
      node = make("span", { className: RIGHT_TO_LEFT.test(text) ? "shared rtl" : "shared", title: text }, ...spans);
    }
    this.drawn.push({ to: this.spans.length, node });
    if (WORD.test(parts[0][0]?.text)) {
      spans[0].classList.add("word");
      this.element.append(make("wbr"));
    }
    this.element.append(node);
  }

  span(token, index, parts) {
    return make(
      "span",
      {
        className: `token ${token.level} ${token.special ? "special" : ""}`,
        id: `${this.id}-${index}`,
        role: "option",
        tabIndex: -1,
        "aria-selected": "false",
        "aria-label": token.label,
      },
      ...nodes(parts),
    );
  }

  indexOf(event) {
    const span = event.target.closest(".token");
    return span ? Number(span.id.slice(this.id.length + 1)) : -1;
  }

  show(index) {
    if (index < 0) return;
    this.shown = index;
    this.onShow(index);
  }

  // Show the shown token again, because its numbers may have changed.
  refresh() {
    if (this.shown < this.tokens.length) this.show(this.shown);
  }

  // Make one token the only one that Tab reaches.
  reach(index) {
    this.spans[this.current]?.setAttribute("tabindex", "-1");
    this.current = Math.max(index, 0);
    this.spans[this.current]?.setAttribute("tabindex", "0");
  }

  focused(index) {
    if (index < 0) return;
    this.reach(index);
    if (this.held >= 0 && this.held !== index) this.hold(-1);
    this.show(index);
  }

  toggle(index) {
    if (index < 0) return;
    this.spans[index].focus();
    if (this.onChoose) this.onChoose(index);
    else this.hold(this.held === index ? -1 : index);
    this.show(index);
  }

  // Hold a token: pointing at others does not show them. -1 holds none.
  hold(index) {
    this.spans[this.held]?.setAttribute("aria-selected", "false");
    this.held = index;
    this.spans[index]?.setAttribute("aria-selected", "true");
  }

  // Mark the tokens that correspond to the token shown in another strip.
  mark(indices) {
    for (const span of this.element.querySelectorAll(".marked")) span.classList.remove("marked");
    for (const index of indices) this.spans[index]?.classList.add("marked");
  }

  move(event) {
    const last = this.tokens.length - 1;
    const ahead = this.element.matches(":dir(rtl)") ? "ArrowLeft" : "ArrowRight";
    const keys = {
      ArrowLeft: () => this.spans[Math.max(this.current - 1, 0)].focus(),
      ArrowRight: () => this.spans[Math.max(this.current - 1, 0)].focus(),
      [ahead]: () => this.spans[Math.min(this.current + 1, last)].focus(),
      ArrowDown: () => this.spans[this.below(1)].focus(),
      ArrowUp: () => this.spans[this.below(-1)].focus(),
      Home: () => this.spans[0].focus(),
      End: () => this.spans[last].focus(),
      Enter: () => this.toggle(this.current),
      " ": () => this.toggle(this.current),
      Escape: () => this.hold(-1),
    };
    if (!keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
  }

  // Return the index of the nearest token in the line below (1) or above (-1).
  below(direction) {
    const boxes = this.spans.map((span) => span.getClientRects()[0]);
    const from = boxes[this.current];
    const beyond = boxes.flatMap((box, i) => (box && (box.top - from.top) * direction > from.height / 2 ? [i] : []));
    const line = direction > 0 ? boxes[beyond[0]]?.top : boxes[beyond.at(-1)]?.top;
    const near = beyond.filter((i) => Math.abs(boxes[i].top - line) < from.height / 2);
    const distance = (i) => Math.abs(boxes[i].left - from.left);
    return near.length ? near.reduce((a, b) => (distance(b) < distance(a) ? b : a)) : this.current;
  }
}
