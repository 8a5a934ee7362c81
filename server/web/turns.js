/** Turns of one speaker at `/v2/listen`, Deepgram's Flux. A turn lives in one connection, so none is opened again. */

import { TuttiError } from "./tutti.js";

const NORMAL = 1000;
const REFUSED = "The server refused a stream of turns.";

/** One stream, with the methods of `TuttiStream` that a page needs; `Results` come from turns, and `turn` has each event. */
export class TurnStream {
  #socket;
  #waiting = []; // frames from before the connection
  #listeners = new Map();
  #settle;
  #error = "";

  /** `url`: the address of `/v2/listen`; `query`: its parameters, arrays are repeated. */
  constructor(url, { key, sampleRate, query }) {
    const address = new URL(url);
    const given = { encoding: "linear16", sample_rate: sampleRate, eager_eot_threshold: 0.5, ...query };
    for (const [name, value] of Object.entries(given))
      for (const one of [value].flat()) if (one !== undefined) address.searchParams.append(name, one);
    this.done = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.done.catch(() => {}); // emitted as "failed", too
    this.address = { url: address.href, key };
  }

  on(type, listener) {
    this.#listeners.set(type, listener);
    return this;
  }

  open() {
    const { url, key } = this.address;
    try {
      this.#socket = new WebSocket(url, key ? ["token", key] : []);
    } catch {
      queueMicrotask(() => this.#fail(new TuttiError("the API key has invalid characters", { status: 401 })));
      return this;
    }
    let opened = false;
    this.#socket.onopen = () => {
      opened = true;
      for (const frame of this.#waiting.splice(0)) this.#socket.send(frame);
      this.#emit("open");
    };
    this.#socket.onmessage = ({ data }) => this.#received(JSON.parse(data));
    this.#socket.onclose = async ({ code, reason }) => {
      if (code === NORMAL) this.#settle.resolve({ code, reason });
      else this.#fail(opened ? new TuttiError(this.#error || reason || `code ${code}`, { code }) : await this.#refusal());
    };
    return this;
  }

  send(pcm) {
    this.#send(pcm);
  }

  /** Replace the key terms. */
  configure(keyterms) {
    this.#send(JSON.stringify({ type: "Configure", keyterms }));
  }

  /** Request the last words. Returns: `done`. */
  close() {
    this.#send('{"type":"CloseStream"}');
    return this.done;
  }

  abort() {
    if (this.#socket) this.#socket.onclose = null;
    this.#socket?.close();
    this.#settle.resolve({ code: NORMAL, reason: "aborted" });
  }

  #send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(frame);
    else if (this.#socket?.readyState === WebSocket.CONNECTING) this.#waiting.push(frame);
  }

  #received(message) {
    if (message.type !== "TurnInfo") {
      if (message.type === "Error") this.#error = message.description;
      else this.#emit(message.type, message);
      return;
    }
    const { event, words, audio_window_start: start } = message;
    const isFinal = event === "EndOfTurn";
    const settled = isFinal || event === "EagerEndOfTurn";
    this.#emit("turn", message);
    this.#emit("Results", { words, stableWords: settled ? words.length : 0, isFinal, start });
  }

  /** Find out whether the key was refused, which browsers hide. */
  async #refusal() {
    const { url, key } = this.address;
    const headers = key ? { Authorization: `Token ${key}` } : {};
    const answer = await fetch(new URL("../v1/models", url.replace("ws", "http")), { headers }).catch(() => null);
    if (!answer) return new TuttiError("the server cannot be reached");
    return new TuttiError(answer.ok ? REFUSED : "", { status: answer.ok ? 0 : answer.status });
  }

  #fail(error) {
    this.#settle.reject(error);
    this.#emit("failed", error);
  }

  #emit(type, detail) {
    this.#listeners.get(type)?.(detail);
  }
}
