// The view that talks with a run. Each token of an answer shows its surprisal and the likeliest candidates.

import { events } from "./api.js";
import { bars, described, facts, heading, showIn } from "./detail.js";
import { byId, make, POINT, sampling, touch } from "./dom.js";
import { drawLegend, levelsOf } from "./levels.js";
import { hexOf, textOf } from "./pieces.js";
import { Strip, shown } from "./strip.js";

const HINT = `${POINT} a token of an answer to see its ten likeliest candidates.`;
const KEYS = touch ? "" : "Enter sends, Shift+Enter begins a line.";
const TOP = 10;
const TOKENS = 200; // of an answer, at most half of the context, as in `bytelm chat`
const TOO_LONG = "context_length_exceeded";
const ENDS = { length: "Stopped after the chosen number of tokens.", stop: "The model ended its answer." };
const STOPPED = "Stopped at the stop text.";
const FORGETS = " The model no longer sees the oldest messages.";

// Return a token of the API's log-probabilities in the form of the other views. Its name stands for its id.
function tokenOf({ token, logprob, bytes, top_logprobs: top }) {
  const candidates = top?.map(tokenOf);
  const place = candidates?.findIndex(({ id }) => id === token);
  return {
    id: token,
    hex: hexOf(bytes ?? new TextEncoder().encode(token)),
    special: bytes === null,
    bits: -logprob / Math.LN2 + 0, // no negative zero
    p: Math.exp(logprob),
    rank: place >= 0 ? place + 1 : undefined,
    top: candidates,
  };
}

// Return the messages without the oldest turn, or undefined if there is only one. System messages stay.
function withoutOldestTurn(messages) {
  const first = messages.findIndex(({ role }) => role !== "system");
  const next = messages.findIndex(({ role }, place) => place > first && role === "user");
  return next < 0 ? undefined : [...messages.slice(0, first), ...messages.slice(next)];
}

// Call `onEnter` when Enter is pressed alone, and not to choose a character. On a touch screen Enter begins a line.
function enters(field, onEnter) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch) return;
    event.preventDefault();
    onEnter();
  });
}

function button(name, label, onClick) {
  const made = make("button", { type: "button", "aria-label": label }, name);
  made.addEventListener("click", onClick);
  return made;
}

// A message and its element of the conversation. It calls `view` for the actions of the user.
class Turn {
  constructor(view, role, content, author) {
    this.view = view;
    this.role = role;
    this.content = content;
    this.tokens = []; // of an answer of the model that was not edited
    this.strip = new Strip(`Tokens of the answer of ${author}`, (index) => view.showToken(this, index));
    this.said = make("p", { className: "said", dir: "auto" });
    this.body = make("div", {}, this.strip.element, this.said);
    const again = button("Regenerate", `Regenerate this answer of ${author}`, () => view.regenerate(this));
    this.edits = button("Edit", `Edit this message of ${author}`, () => this.edit());
    this.actions = make("span", { className: "turn-actions" }, this.edits, ...(role === "assistant" ? [again] : []));
    const head = make("div", { className: "turn-head" }, make("span", { className: "of" }, author), this.actions);
    this.element = make("li", { className: `turn ${role}` }, head, this.body);
    this.draw();
  }

  // Append a part of an answer: its complete characters, and its tokens.
  write(text, tokens) {
    this.content += text;
    this.tokens.push(...tokens);
    this.draw();
  }

  draw() {
    const levels = levelsOf("surprisal", this.view.levels);
    this.strip.set(this.tokens.map((token) => shown(token, levels.name(token), described)));
    this.said.textContent = this.tokens.length ? "" : this.content;
    this.said.hidden = this.said.textContent === "";
  }

  // Put a field in the place of the text. Enter or the first button keeps the change, Escape does not.
  edit() {
    const field = make("textarea", { value: this.content, dir: "auto", "aria-label": "Message", rows: 2 });
    const leave = () => {
      this.element.replaceChild(this.body, editor);
      this.actions.hidden = false;
      this.edits.focus();
    };
    const save = () => {
      leave();
      if (field.value !== this.content) {
        this.content = field.value;
        this.tokens = [];
        this.draw();
      }
      if (this.role === "user") this.view.answerAgain(this);
    };
    const named = this.role === "user" ? "Send" : "Save";
    const buttons = [button(named, named, save), button("Cancel", "Cancel", leave)];
    const editor = make("div", {}, field, make("div", { className: "actions" }, ...buttons));
    enters(field, save);
    field.addEventListener("keydown", (event) => event.key === "Escape" && leave());
    this.element.replaceChild(editor, this.body);
    this.actions.hidden = true;
    field.focus();
  }
}

export class ChatView {
  constructor(report) {
    this.report = report;
    this.turns = [];
    byId("send").addEventListener("click", () => (this.running ? this.running.abort() : this.send()));
    byId("new-chat").addEventListener("click", () => this.keep(0));
    enters(byId("message"), () => this.running || this.send());
    showIn(byId("chat-detail"), HINT);
    this.say(KEYS);
  }

  // Show the view for a run. The conversation stays, so that another run can go on with it.
  open(model) {
    if (this.model !== model) this.running?.abort();
    this.model = model;
    this.levels = model.levels;
    this.tokens = Math.min(TOKENS, model.context >> 1);
    byId("chat").querySelector("[name=max_tokens]").placeholder = this.tokens;
    if (document.activeElement === document.body) byId("message").focus({ preventScroll: true });
  }

  say(text) {
    byId("chat-status").textContent = text;
  }

  add(role, content) {
    const turn = new Turn(this, role, content, role === "user" ? "You" : this.model.name);
    this.turns.push(turn);
    byId("turns").append(turn.element);
    byId("new-chat").disabled = false;
    return turn;
  }

  // Keep the first `count` turns, and end an answer in progress.
  keep(count) {
    this.running?.abort();
    for (const turn of this.turns.splice(count)) turn.element.remove();
    byId("new-chat").disabled = this.turns.length === 0;
    showIn(byId("chat-detail"), HINT);
    this.legend();
    this.report();
    this.say(KEYS);
  }

  // Add the message and answer it. Without a message, answer the last one of the user.
  send() {
    const field = byId("message");
    if (field.value.trim()) {
      this.add("user", field.value);
      field.value = "";
    }
    if (this.turns.at(-1)?.role === "user") this.answer();
  }

  answerAgain(turn) {
    this.keep(this.turns.indexOf(turn) + 1);
    this.answer();
  }

  regenerate(turn) {
    this.keep(this.turns.indexOf(turn));
    this.answer();
    byId("send").focus({ preventScroll: true }); // the button that had the focus is gone
  }

  async answer() {
    this.running?.abort();
    const mine = (this.running = new AbortController());
    const messages = this.turns.map(({ role, content }) => ({ role, content }));
    const { stop } = sampling("chat");
    const turn = this.add("assistant", "");
    turn.edits.hidden = true; // the stream would go on in the edited text
    this.busy(true);
    this.report();
    try {
      for await (const { choices, cut } of this.chunks(messages, mine.signal)) {
        const [{ delta, logprobs, finish_reason: end }] = choices;
        this.following(() => turn.write(delta.content ?? "", (logprobs?.content ?? []).map(tokenOf)));
        this.legend();
        if (end) this.say((stop && textOf(turn.tokens).includes(stop) ? STOPPED : ENDS[end]) + (cut ? FORGETS : ""));
      }
    } catch (error) {
      if (mine === this.running) {
        this.say(error.name === "AbortError" ? "Stopped." : "");
        if (error.name !== "AbortError") this.report(error.message);
      }
      if (!turn.tokens.length && this.turns.includes(turn)) {
        this.turns.splice(this.turns.indexOf(turn), 1);
        turn.element.remove();
      }
    } finally {
      turn.edits.hidden = false;
      if (mine === this.running) this.busy(false);
    }
  }

  // Yield the chunks of an answer. If the messages do not fit in the context, the oldest turns are left out (`cut`). The
  // last turn may leave less room than the answer has by default.
  async *chunks(messages, signal) {
    const system = byId("system").value;
    const body = { model: this.model.name, stream: true, logprobs: true, top_logprobs: TOP, ...sampling("chat") };
    const chosen = body.max_tokens;
    body.max_tokens ??= this.tokens;
    const all = system ? [{ role: "system", content: system }, ...messages] : messages;
    let read = all;
    for (;;) {
      try {
        for await (const chunk of events("/v1/chat/completions", { ...body, messages: read }, signal)) {
          yield { ...chunk, cut: read.length < all.length };
        }
        return;
      } catch (error) {
        const fewer = withoutOldestTurn(read);
        if (error.code !== TOO_LONG || !(fewer || (body.max_tokens && !chosen))) throw error;
        if (fewer) read = fewer;
        else delete body.max_tokens;
      }
    }
  }

  busy(running) {
    if (!running) this.running = undefined;
    byId("send").textContent = running ? "Stop" : "Send";
    if (running) this.say("Answering …");
  }

  // Draw more of an answer, and keep the end of the page in view if it was.
  following(draw) {
    const page = document.documentElement;
    const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
    draw();
    if (atEnd) page.scrollTop = page.scrollHeight;
  }

  legend() {
    const levels = levelsOf("surprisal", this.levels);
    const scored = this.turns.some(({ tokens }) => tokens.length);
    drawLegend(byId("chat-legend"), scored ? levels.title : "", levels.legend);
  }

  showToken(turn, index) {
    const token = turn.tokens[index];
    if (!token) return;
    const list = bars(token.top, { chosen: token.id });
    showIn(byId("chat-detail"), HINT, make("div", { className: "card" }, heading(token), facts(token), list));
  }
}
