/** Audio and messages of a stream in memory until a server has answered them: what a lost connection sends again. */

/** Audio and messages that may have to be sent again, in order, each with the time at which it was sent. */
export class Unacknowledged {
  #items = []; // { end, at, pcm } or { end, at, message, … }; `end` in samples of the stream
  #limit;
  #next = 0; // index of the next item to send
  #from = 0; // first sample to send on this connection
  first = 0; // oldest sample in memory
  end = 0;

  constructor(limit) {
    this.#limit = limit;
  }

  push(pcm, at) {
    this.end += pcm.length;
    this.#items.push({ end: this.end, at, pcm });
    while (this.end - this.first > this.#limit) this.acknowledge(this.#items.find((item) => item.pcm).end);
  }

  /** Append a message. Returns: its item. */
  say(message, at) {
    // `number`: of the final that answered it; `here`: answered on this connection; `ticketed`: in the latest ticket;
    // `terms`: of a Context, all terms in force, as its answer lists them
    const item = { end: this.end, at, message, answered: false, number: Infinity, here: false, ticketed: false, terms: [] };
    this.#items.push(item);
    return item;
  }

  /** Drop everything before a sample, and the messages at it for which `settled` returns true. */
  acknowledge(sample, settled = () => true) {
    this.first = Math.max(this.first, Math.min(sample, this.end));
    const over = (item) => item.end < this.first || (item.end === this.first && (item.pcm || settled(item)));
    while (this.#items.length && over(this.#items[0])) {
      this.#items.shift();
      this.#next = Math.max(0, this.#next - 1);
    }
    const [head] = this.#items;
    if (head?.pcm) head.pcm = head.pcm.subarray(Math.max(0, head.pcm.length - (head.end - this.first)));
  }

  /** Time at which the last sample before `sample` was sent, or undefined if it is no longer in memory. */
  sentAt(sample) {
    const cursor = Math.min(sample, this.end);
    return cursor <= this.first ? undefined : this.#items.find((item) => item.pcm && item.end >= cursor)?.at;
  }

  /** Continue with audio that ends after a sample, and messages at or after it. */
  seek(sample) {
    this.#from = sample;
    const next = this.#items.findIndex((item) => (item.pcm ? item.end > sample : item.end >= sample));
    this.#next = next < 0 ? this.#items.length : next;
  }

  /** Returns: the next item to send, or undefined. */
  take() {
    const item = this.#items[this.#next];
    if (!item) return undefined;
    this.#next += 1;
    const early = item.pcm ? this.#from - (item.end - item.pcm.length) : 0;
    return early > 0 ? { ...item, pcm: item.pcm.subarray(early) } : item;
  }

  get messages() {
    return this.#items.filter((item) => item.message);
  }

  get audio() {
    return this.#items.flatMap((item) => item.pcm ?? []);
  }
}
