/**
 * State of a stream over all its connections: what to send again after a loss, and which events were emitted.
 *
 * No socket and no clock. Positions are samples from the start of the stream. A server with tickets continues exactly
 * where the latest one was made; with any other the stream starts again at the end of the last final, and its times are
 * shifted. A stream with `rewind` starts so much earlier that later Rewinds reach back as far as they would have.
 */

import { Unacknowledged } from "./unacknowledged.js";

const SAME_S = 0.002; // servers round their times
const CONTEXT_S = 30; // of audio, for which a server favors the terms of a Context
const UNSPACED = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}";
const BETWEEN = new RegExp(`(?<=[${UNSPACED}，。？]) (?=[${UNSPACED}])`, "gu");

/** Returns: words as text; scripts such as Han have no spaces. */
export const joined = (texts) => texts.join(" ").replace(BETWEEN, "");

/** A stream with its own time, independent of its connections. */
export class Continuity {
  audio;
  begun = null; // how the connection started: "new", "ticket" or "replay"; null until the server has answered
  from = 0; // the sample at which it started
  until = 0; // end of the audio from before the connection; live audio follows
  sent = 0;
  progress = 0; // samples covered by finals or tickets
  closing = null;
  metadata = null;
  #rate;
  #covered = false; // a final for all audio was received after CloseStream
  #base = 0; // the sample at which the server's time starts
  #baseFinals = 0;
  #high = 0; // end of the audio sent on any connection
  #finals = 0; // received over all connections
  #ticket = null; // the latest: { ticket, sample }
  #settled = 0; // end of the last final
  #reached = 0; // latest end of any result
  #reachedBefore = 0; // `#reached` at the start of this connection
  #kept; // samples of finals that a Rewind can decode again
  #ends = [0]; // samples at which finals ended; a replay starts at the first
  #quiet = 0; // interims up to this sample were already emitted
  #missing = 0; // lost audio before this sample was already reported
  #lastEvent = {}; // time of the last event of each kind
  #configured = []; // Configure messages that may apply at the start of the next connection
  #contexts = []; // and Context messages
  #awaiting = {}; // unanswered messages of this connection, by type
  #urgent = []; // messages to send first

  /** `held`: samples in memory, besides those of `rewind` seconds of finals that can be decoded again. */
  constructor(rate, held, rewind = 0) {
    this.#rate = rate;
    this.#kept = Math.round(rewind * rate);
    this.audio = new Unacknowledged(held + this.#kept);
  }

  finalize(at) {
    this.audio.say({ type: "Finalize" }, at);
  }

  configure(keyterms, at) {
    this.#configured.push(this.audio.say({ type: "Configure", keyterms }, at));
  }

  addContext(text, at) {
    this.#contexts.push(this.audio.say({ type: "Context", text }, at));
  }

  rewind(seconds, keyterms, at) {
    this.audio.say({ type: "Rewind", seconds, keyterms }, at);
  }

  close(at) {
    this.closing ??= this.audio.say({ type: "CloseStream" }, at);
  }

  /** Start a new connection; `next` returns what to send on it. */
  connected() {
    this.#quiet = this.#reachedBefore = this.#reached;
    [this.#awaiting, this.#urgent] = [{ Finalize: [], Configure: [], Context: [], Rewind: [] }, []];
    if (this.#ticket?.sample < this.audio.first) this.#dropTicket(); // the audio after it is no longer in memory
    if (!this.#ticket) return this.#beginAnew();
    const { ticket } = this.#ticket;
    const cursor_s = Math.max(0, this.#reached - this.#base) / this.#rate;
    this.#urgent.push({ type: "Resume", ticket, finals: this.#finals - this.#baseFinals, cursor_s });
    return [];
  }

  /** True if every final and answer was received, so that only the close can be missing. */
  get complete() {
    return this.#covered && this.audio.messages.every((item) => item.answered || item === this.closing);
  }

  lost() {
    this.begun = null;
    for (const item of this.audio.messages) item.here = false;
  }

  /** Returns: an item with `pcm` or a `message`, or undefined if nothing is ready. */
  next() {
    if (this.#urgent.length) return { message: this.#urgent.shift() };
    while (this.begun) {
      const item = this.audio.take();
      if (!item) return undefined;
      this.sent = item.end;
      this.#high = Math.max(this.#high, item.end);
      if (item.message && this.#isKnown(item)) continue;
      if (item.message && !this.#isSilent(item)) this.#awaiting[item.message.type]?.push(item);
      return item;
    }
    return undefined;
  }

  #isKnown(item) {
    if (this.begun === "ticket") return item.ticketed;
    const { type } = item.message;
    return item.answered && (type === "Rewind" || (type === "Finalize" && item.end <= this.from));
  }

  /** A server that restored the stream does not repeat finals. */
  #isSilent(item) {
    return this.begun === "ticket" && item.answered && item.message.type === "Finalize";
  }

  /** Handle a message of the server. Returns: the events to emit, as a list of [type, detail]. */
  receive(message, now) {
    if (!this.begun) return this.#answered(message); // messages before the answer to Resume are ignored
    const shift = this.#base / this.#rate;
    switch (message.type) {
      case "Results":
        return this.#result(message, shift, now);
      case "Metadata":
        this.metadata = { ...message, duration: message.duration + shift };
        return [];
      case "Ticket":
        return this.#keep(message);
      case "SpeechStarted":
        return this.#event(message, "timestamp", shift);
      case "UtteranceEnd":
        return this.#event(message, "last_word_end", shift);
      case "ConfigureSuccess":
      case "ConfigureFailure":
      case "ContextSuccess":
      case "ContextFailure":
      case "RewindFailure":
        return this.#termsAnswered(message);
      default:
        return [[message.type, message]];
    }
  }

  #answered(message) {
    if (message.type === "Resumed")
      return this.#begin(this.#base + this.#samples(message.audio_s), this.#ticket ? "ticket" : "replay");
    if (message.type === "ResumeRefused" && this.#ticket) {
      this.#dropTicket();
      [this.#base, this.#baseFinals] = [0, 0];
      this.#urgent.push({ type: "Resume", from_s: this.#place / this.#rate, finals: this.#finals });
      return [["refused", message]];
    }
    if (message.type !== "ResumeRefused" && message.type !== "Error") return [];
    this.#dropTicket(); // the server does not support tickets
    return this.#beginAnew();
  }

  /** The sample at which to start without a ticket: the end of a final. */
  get #place() {
    return Math.max(this.#ends[0], this.audio.first);
  }

  #beginAnew() {
    [this.#base, this.#baseFinals] = [this.#place, this.#finals];
    return this.#begin(this.#place, this.#high ? "replay" : "new");
  }

  #begin(sample, how) {
    [this.begun, this.from, this.sent, this.until] = [how, sample, sample, this.audio.end];
    this.audio.seek(sample);
    const events = [["open", { replayedSeconds: (this.audio.end - sample) / this.#rate, resumed: how === "ticket" }]];
    if (how === "ticket") return events;
    const lost = sample - Math.max(this.#settled, this.#missing);
    this.#missing = Math.max(this.#missing, sample);
    if (lost > 0) events.push(["lost", { seconds: lost / this.#rate }]);
    for (const item of this.#inForce(sample)) {
      this.#urgent.push(item.message);
      this.#awaiting[item.message.type].push(item);
    }
    return events;
  }

  /** The key terms in force at a sample whose messages are not sent again there, Contexts as one message. */
  #inForce(sample) {
    const messages = this.audio.messages;
    const gone = (item) => item.end < sample || (item.end === sample && !messages.includes(item));
    const configured = [this.#configured.findLast(({ end }) => end <= sample)].filter((item) => item && gone(item));
    const contexts = this.#contexts.filter((item) => gone(item) && item.end > sample - CONTEXT_S * this.#rate);
    const text = contexts.findLast(({ terms }) => terms.length)?.terms.join(" ");
    const known = text ? [{ message: { type: "Context", text }, answered: true }] : [];
    return [...configured, ...known, ...contexts.filter(({ answered }) => !answered)];
  }

  #samples(seconds) {
    return Math.round(seconds * this.#rate);
  }

  #dropTicket() {
    this.#ticket = null;
    for (const item of this.audio.messages) item.ticketed = false;
  }

  #keep({ ticket, audio_s, finals }) {
    const sample = this.#base + this.#samples(audio_s);
    if (sample < this.audio.first) return [];
    if (sample <= this.from && this.begun !== "ticket") return []; // covers no audio, and possibly not the key terms
    this.#ticket = { ticket, sample };
    let replaced = false; // by a later Configure at the same sample
    for (const item of this.audio.messages.reverse()) {
      const { type } = item.message;
      // The answer to key terms may come before an older ticket without them.
      let known = item.number <= this.#baseFinals + finals;
      if (type === "Configure" || type === "Context") known = type === "Configure" && item.here && replaced;
      item.ticketed ||= item.end < sample || (item.end === sample && known);
      replaced ||= type === "Configure" && item.end === sample;
    }
    this.#letGo();
    return [];
  }

  /** Drop what is never sent again: audio and messages covered by both a final and the latest ticket. */
  #letGo() {
    const ticketed = this.#ticket?.sample ?? Infinity;
    this.progress = Math.max(this.progress, this.#settled, this.#ticket ? ticketed : 0);
    const until = Math.min(this.#ends[0], ticketed);
    const old = this.#configured.findLastIndex(({ end }) => end <= until);
    if (old > 0) this.#configured.splice(0, old);
    this.#contexts = this.#contexts.filter(({ end }) => end > until - CONTEXT_S * this.#rate);
    this.audio.acknowledge(until, (item) => item.answered && (!this.#ticket || item.ticketed));
  }

  /** Emit an event unless it was already emitted: in a replay the server detects the same events again. */
  #event(message, name, shift) {
    const time = message[name] + shift;
    const known = name === "timestamp" && this.begun === "replay" ? this.#reachedBefore / this.#rate : -1;
    if (time <= Math.max(this.#lastEvent[name] ?? -1, known) + SAME_S) return [];
    this.#lastEvent[name] = time;
    return [[message.type, { ...message, [name]: time }]];
  }

  #termsAnswered(message) {
    const item = this.#awaiting[message.type.replace(/Success|Failure/, "")].shift();
    const repeated = item?.answered;
    if (item) item.answered = item.here = true;
    if (item && message.type === "ContextSuccess") item.terms = message.keyterms;
    return repeated ? [] : [[message.type, message]];
  }

  #result(message, shift, now) {
    const cursor = this.#base + this.#samples(message.start + message.duration);
    if (message.correction) {
      const item = this.#awaiting.Rewind.shift();
      if (item) item.answered = true;
      return [["Results", this.#inOurTime(message, shift, cursor, item, now)]];
    }
    const answers = message.is_final && message.from_finalize;
    const asked = answers ? this.#awaiting.Finalize.shift() : null;
    const old = asked?.answered || this.#isOld(message, cursor);
    if (asked && !asked.answered) Object.assign(asked, { answered: true, number: this.#finals + 1 });
    const shown = this.#withoutOld(this.#inOurTime(message, shift, cursor, asked, now));
    this.#reached = Math.max(this.#reached, cursor);
    if (message.is_final) this.#finalCame(cursor, answers);
    else if (!old) this.#quiet = 0;
    return old ? [] : [["Results", shown]];
  }

  /** Returns: the part of a result after the last final: in a replay, others may end elsewhere than before. */
  #withoutOld(shown) {
    const begin = this.#settled / this.#rate;
    if (shown.start >= begin - SAME_S) return shown;
    const words = shown.words.filter(({ start, end }) => (start + end) / 2 > begin);
    const texts = words.map(({ word, punctuated_word: written }) => written ?? word);
    const stableWords = Math.max(0, shown.stableWords - (shown.words.length - words.length));
    const duration = shown.start + shown.duration - begin;
    return { ...shown, words, stableWords, transcript: joined(texts), start: begin, duration };
  }

  /** True if a result repeats what was already emitted. */
  #isOld(message, cursor) {
    const same = this.#samples(SAME_S);
    if (!message.is_final) return cursor <= this.#quiet + same;
    if (!message.duration) return !message.from_finalize && !this.closing; // the empty final of a drain in silence
    return this.#base + this.#samples(message.start) < this.#settled - same && cursor <= this.#settled + same;
  }

  #finalCame(cursor, answers) {
    this.#finals += 1;
    this.#settled = Math.max(this.#settled, Math.min(cursor, this.audio.end));
    if (this.#settled > this.#ends.at(-1)) this.#ends.push(this.#settled);
    while (this.#ends.length > 1 && this.#ends[1] <= this.#settled - this.#kept) this.#ends.shift();
    const everything = cursor >= this.audio.end - this.#samples(SAME_S) && this.sent >= this.audio.end;
    this.#covered ||= Boolean(this.closing) && everything && !answers;
    this.#letGo();
  }

  /** Returns: a `Results` frame with stream times, its `latency`, and `finalLatency` since its Finalize or last word. */
  #inOurTime(message, shift, cursor, asked, now) {
    const [best] = message.channel.alternatives;
    const sentAt = this.audio.sentAt(cursor);
    const spokenAt = best.words.length && this.audio.sentAt(this.#base + this.#samples(best.words.at(-1).end));
    return {
      transcript: best.transcript,
      confidence: best.confidence,
      words: best.words.map((word) => ({ ...word, start: word.start + shift, end: word.end + shift })),
      stableWords: message.is_final ? best.words.length : (message.tutti?.stable_words ?? 0),
      start: message.start + shift,
      duration: message.duration,
      isFinal: message.is_final,
      speechFinal: message.speech_final,
      fromFinalize: message.from_finalize,
      correction: message.correction ?? false, // replaces all words from `start` on
      latency: sentAt === undefined ? undefined : now - sentAt,
      finalLatency: message.is_final ? now - (asked?.at ?? (spokenAt || sentAt || now)) : undefined,
      message,
    };
  }
}
