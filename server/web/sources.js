/** Audio sources: a microphone, or a recording in real time or all at once. */

import { HIGHEST_HZ, MESSAGE_S, toInt16 } from "./pcm.js";

const RATE_HZ = 16000; // that of the shipped models; the server resamples other rates
const LARGEST_BYTES = 100 * 2 ** 20; // decoded in memory
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

/** Play a recording (a file or a promise of one). Returns: a source in real time. Throws: SourceError. */
export async function openPlayer(file) {
  const context = await readyContext({ sampleRate: RATE_HZ });
  let node;
  try {
    node = new AudioBufferSourceNode(context, { buffer: await decode(context, file) });
  } catch (error) {
    await context.close();
    throw error;
  }
  node.connect(context.destination);
  const source = new LiveSource(context, node, () => node.disconnect());
  node.onended = () => source.onEnd();
  return source;
}

/** Returns: a running context with the worklet loaded. */
async function readyContext(options) {
  const context = new AudioContext(options); // during the click: otherwise browsers keep it suspended
  await context.audioWorklet.addModule(WORKLET);
  await context.resume();
  return context;
}

/** Read a whole recording. Returns: 16-bit mono samples and their rate. Throws: SourceError. */
export async function readRecording(file) {
  const buffer = await decode(new OfflineAudioContext(1, 1, RATE_HZ), file);
  const channels = Array.from({ length: buffer.numberOfChannels }, (_, i) => buffer.getChannelData(i));
  const mono = channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
  return { pcm: toInt16(mono), sampleRate: RATE_HZ };
}

async function decode(context, fetched) {
  const file = await fetched;
  if (file.size > LARGEST_BYTES) throw new SourceError("This recording is too large for this page (limit 100 MB).");
  try {
    return await context.decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new SourceError(`The browser cannot read ${file.name ?? "this recording"} as audio.`);
  }
}

/** Audio in real time, cut into messages by the worklet and queued until `start` is called. */
class LiveSource {
  #context;
  #node;
  #release;
  #worklet;
  #flushed = null;
  onEnd = () => {}; // called if the microphone was unplugged or the recording has ended

  constructor(context, node, release) {
    this.#context = context;
    this.#node = node;
    this.#release = release;
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
    this.#node.start?.();
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
