/** Audio sources in real time: a microphone, or a recording that is played. */

import { HIGHEST_HZ, MESSAGE_S } from "./pcm.js";

const RATE_HZ = 16000; // that of the shipped models; the server resamples other rates
const FLUSH_MS = 300; // time limit, because a stopped audio thread does not answer
const WORKLET = new URL("worklet.js", import.meta.url);

// The model was trained with noise; a browser's noise suppression would also remove speech.
const MICROPHONE = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };

const MICROPHONE_ERRORS = {
  NotAllowedError: "The microphone is blocked. Allow it next to the address bar, then try again.",
  NotFoundError: "No microphone was found. Connect one, or choose a recording.",
  NotReadableError: "The microphone cannot be opened; another program may be using it.",
};

/** A problem that the user can fix. */
export class SourceError extends Error {}

/** Open the microphone. Returns: a source. Throws: SourceError. */
export async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia)
    throw new SourceError("Browsers allow the microphone only on pages from https:// or from this computer.");
  const context = await readyContext({ sampleRate: RATE_HZ }); // first: not to miss the first word
  let media;
  try {
    media = await navigator.mediaDevices.getUserMedia({ audio: MICROPHONE });
  } catch (error) {
    await context.close();
    throw new SourceError(MICROPHONE_ERRORS[error.name] ?? `The microphone cannot be used: ${error.message}`);
  }
  const [track] = media.getTracks();
  const source = new LiveSource(...(await microphoneNode(context, media)), () => track.stop());
  track.onended = () => source.onEnd();
  return source;
}

async function microphoneNode(context, media) {
  try {
    return [context, context.createMediaStreamSource(media)];
  } catch {
    await context.close(); // some browsers do not resample a microphone: use its own rate
    const own = await readyContext({});
    return [own, own.createMediaStreamSource(media)];
  }
}

/** Play a recording (a file or a promise of one), decoded as it plays. Returns: a source. Throws: SourceError. */
export async function openPlayer(fetched) {
  const context = await readyContext({ sampleRate: RATE_HZ });
  const file = await fetched;
  const player = new Audio(URL.createObjectURL(file));
  const release = () => (player.pause(), URL.revokeObjectURL(player.src));
  try {
    await new Promise((resolve, reject) => Object.assign(player, { oncanplaythrough: resolve, onerror: reject }));
  } catch {
    release();
    await context.close();
    throw new SourceError(`The browser cannot read ${file.name ?? "this recording"} as audio.`);
  }
  const node = context.createMediaElementSource(player);
  node.connect(context.destination);
  const stopped = ({ message }) => source.onEnd(`The recording cannot be played further: ${message}`);
  const source = new LiveSource(context, node, release, () => player.play().catch(stopped));
  player.onended = () => source.onEnd();
  player.onerror = () => stopped(player.error);
  return source;
}

/** Returns: a running context with the worklet loaded. */
async function readyContext(options) {
  const context = new AudioContext(options); // during the click: otherwise browsers keep it suspended
  await context.audioWorklet.addModule(WORKLET);
  await context.resume();
  return context;
}

/** Audio in real time, cut into messages by the worklet and queued until `start` is called. */
class LiveSource {
  #context;
  #release;
  #play;
  #worklet;
  #flushed = null;
  onEnd = () => {}; // called if the microphone was unplugged or the recording has ended, with the problem if any

  constructor(context, node, release, play = () => {}) {
    this.#context = context;
    this.#release = release;
    this.#play = play;
    const divide = Math.ceil(context.sampleRate / HIGHEST_HZ);
    this.sampleRate = Math.round(context.sampleRate / divide);
    this.#worklet = new AudioWorkletNode(context, "pcm", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
      processorOptions: { size: Math.round(this.sampleRate * MESSAGE_S), divide },
    });
    node.connect(this.#worklet);
  }

  /** Pass 16-bit messages to the callback until stopped. */
  start(onPcm) {
    this.#flushed = new Promise((resolve) => {
      this.#worklet.port.onmessage = ({ data }) => (data ? onPcm(data) : resolve());
    });
    this.#play();
  }

  /** Stop after the last samples were delivered. */
  async stop() {
    this.onEnd = () => {};
    this.#release();
    this.#worklet.port.postMessage("flush");
    await Promise.race([this.#flushed, new Promise((resolve) => setTimeout(resolve, FLUSH_MS))]);
    if (this.#context.state !== "closed") await this.#context.close();
  }
}
