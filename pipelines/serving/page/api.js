// Requests to the server that sent this page.

import { shownName } from "./dom.js";

const KEY = "bytelm-token";

// Move the access token from the page's address (#token=...) to the session's storage. If an address with a token is
// opened in the same tab later, the page begins anew.
export function takeToken() {
  addEventListener("hashchange", () => location.hash.startsWith("#token=") && location.reload());
  const [, token] = location.hash.split("#token="); // URLSearchParams would turn a plus into a space
  if (token) {
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", location.pathname);
  }
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
}

async function send(path, body, signal) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is bytelm serve still running?");
  }
  if (response.status === 401) {
    throw new Error("The access token is missing or wrong. Open the whole address that bytelm serve printed, with #token=TOKEN.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// Return an error of the server as a sentence, in which fields have the names that the page shows.
function sentence({ message: said, param }) {
  const message = said.replaceAll(/`(\w+)`/g, (code, field) => (shownName(field) ? `“${shownName(field)}”` : code));
  const name = param && message.startsWith(`${param} `) && shownName(param);
  if (name) return `“${name}”${message.slice(param.length)}`;
  return message.charAt(0).toUpperCase() + message.slice(1);
}

// Return an Error for a refused request, with the `code` of the server, if any.
async function refusal(response) {
  try {
    const { error } = await response.json();
    return Object.assign(new Error(sentence(error)), { code: error.code });
  } catch {
    return new Error(`The server answered with status ${response.status}.`);
  }
}

// Return the answer to a GET request or, with a body, a POST request, as an object.
export async function ask(path, body, signal) {
  return (await send(path, body, signal)).json();
}

// Yield the objects of an answer that is a stream of server-sent events. Throw an error that the server sends.
export async function* events(path, body, signal) {
  const reader = (await send(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const data of whole.map((event) => event.replace(/^data: /, ""))) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(sentence(event.error));
      yield event;
    }
  }
}
