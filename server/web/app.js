/** The page: connects a source, a stream or an upload, and displays. Stores only the API key, in the tab's session. */

import { Latency, LevelMeter } from "./meters.js";
import { level, MESSAGE_S } from "./pcm.js";
import { openMicrophone, openPlayer, SourceError } from "./sources.js";
import { subtitles } from "./subtitles.js";
import { Transcript } from "./transcript.js";
import { TurnStream } from "./turns.js";
import { TuttiStream } from "./tutti.js";
import { Upload } from "./upload.js";

const $ = (id) => document.getElementById(id);
const OF_TEXT = document.querySelectorAll(".bar button"); // enabled once there is text
const transcript = new Transcript($("log"), $("open"));
const meter = new LevelMeter($("level"));
const resultLatency = new Latency($("result-latency"));
const finalLatency = new Latency($("final-latency"));

const SHOWN_EVENTS = 8;

let run = null; // the open stream and its source, or the upload
let occupied = false; // true from the click that starts a run until it ends

// Messages for the user about refusals of the server, by HTTP status.
const REFUSALS = {
  401: () => ($("key").value ? "This API key is not valid on this server." : "This server requires an API key."),
  403: () => "This API key is not allowed to transcribe here.",
  429: () => "This API key has reached its limit of open streams.",
  503: () => "The server is full or restarting.",
};

const listenUrl = (version = "v1") => new URL(`${version}/listen`, document.baseURI).href;
const apiKey = () => $("key").value.trim();
const keyterms = () => $("terms").value.split(",").map((term) => term.trim()).filter(Boolean);

/** Whether the address of the page asks for speakers: `/?speakers`. */
const namesSpeakers = new URLSearchParams(location.search).has("speakers");

/** Query parameters of streams and uploads. */
function settings() {
  const language = $("language").value || undefined;
  return { smart_format: $("format").checked, keyterm: keyterms(), language, diarize: namesSpeakers || undefined };
}

/** Query parameters of a stream of turns; the language chooses between Flux's two models. */
function turnSettings() {
  const { smart_format: numerals, keyterm, language = "en" } = settings();
  const english = language === "en";
  const model = english ? "flux-general-en" : "flux-general-multi";
  return { model, language_hint: english ? undefined : language, numerals, keyterm };
}

function newStream(sampleRate) {
  const options = { key: apiKey(), sampleRate };
  if ($("turns").checked) return new TurnStream(webSocket("v2"), { ...options, query: turnSettings() });
  const query = { stable_words: true, ...settings() };
  return new TuttiStream(webSocket("v1"), { ...options, query, resumable: true });
}

const webSocket = (version) => listenUrl(version).replace("http", "ws");

function openStream(sampleRate) {
  return newStream(sampleRate)
    .on("open", () => (say("live", "Listening"), complain(null)))
    .on("Results", show)
    .on("turn", showTurn)
    .on("Warning", ({ description }) => complain(description))
    .on("waiting", waiting)
    .on("lost", ({ seconds }) => complain(`${seconds.toFixed(1)} s of audio were lost and are missing from the text.`))
    .on("Error", ({ description }) => complain(description))
    .on("ConfigureFailure", ({ description }) => complain(description))
    .on("failed", failed)
    .open();
}

/** An open stream and its source. */
class Run {
  constructor(source, sampleRate) {
    this.source = source;
    this.rate = sampleRate;
    this.stream = openStream(sampleRate);
    this.samples = 0;
    this.began = performance.now();
    this.stream.done.catch(() => {}).then(() => finished(this));
  }

  configure(terms) {
    this.stream.configure(terms);
  }

  abort() {
    this.stream.abort();
  }

  count(pcm) {
    this.samples += pcm.length;
    meter.add(level(pcm));
    showAudio(this.samples / this.rate, this.began);
  }

  /** Send audio from a live source until it ends or is stopped. */
  follow() {
    this.source.onEnd = (problem) => {
      if (problem) complain(problem);
      this.stop();
    };
    this.source.start((pcm) => {
      this.count(pcm);
      if (run === this) this.stream.send(pcm);
    });
  }

  async stop() {
    if (this.stopping) return;
    this.stopping = true;
    say("waiting", "Finishing…");
    await this.source.stop();
    await this.stream.close().catch(() => {}); // reported by "failed"
  }
}

/** A recording sent as a whole, and shown once the server has answered. */
class WholeRun {
  constructor(file) {
    this.began = performance.now();
    const query = { utterances: true, ...settings() };
    this.upload = new Upload(listenUrl(), file, { key: apiKey(), query, onProgress: this.#progress });
    const refused = (error) => (error.status === 401 ? failed(error) : complain(error.message));
    this.upload.done.then((answer) => this.#answered(answer), refused).then(() => finished(this));
  }

  #progress(sent, size) {
    const percent = Math.floor((100 * sent) / size);
    say("waiting", sent < size ? `Sending… ${percent} %` : "Transcribing…");
  }

  #answered({ metadata, results }) {
    for (const { words, start } of results.utterances)
      transcript.show({ words, stableWords: words.length, isFinal: true, start });
    shown(results.utterances.length > 0);
    showAudio(metadata.duration, this.began);
    const warnings = metadata.warnings?.map(({ message }) => message) ?? [];
    complain([...warnings, ...(results.utterances.length ? [] : ["No words were recognized."])].join(" "));
  }

  /** Key terms cannot be changed in an upload: they are for the next recording. */
  configure() {}

  abort() {
    this.upload.abort();
  }

  stop() {
    this.abort();
  }
}

/** Start a run: `open` returns its source or file, of which `make` makes the run. */
async function begin(name, open, make) {
  if (occupied) return;
  say("waiting", "Preparing…");
  complain(null);
  busy(true);
  for (const readout of [meter, resultLatency, finalLatency]) readout.clear();
  try {
    const opened = await open();
    transcript.begin(name);
    $("turn-events").replaceChildren();
    run = make(opened);
    $("main").disabled = false;
    $("main").focus();
    run.follow?.();
  } catch (error) {
    if (!(error instanceof SourceError)) console.error(error);
    complain(error instanceof SourceError ? error.message : `Could not start: ${error.message}`);
    if (run) run.abort();
    else idle();
  }
}

const live = (source) => new Run(source, source.sampleRate);
const useMicrophone = () => begin("Microphone", openMicrophone, live);

/** Transcribe a recording; `fetched` is a file or a promise of one: browsers only start audio during the click. */
function useRecording(name, fetched) {
  if ($("fast").checked) return begin(name, () => fetched, (file) => new WholeRun(file));
  return begin(name, () => openPlayer(fetched), live);
}

const useSample = () => useRecording("Sample", fetch("web/sample.flac").then((answer) => answer.blob()));

function show(result) {
  const below = $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight;
  transcript.show(result);
  shown(result.words.length > 0);
  resultLatency.add(result.latency);
  finalLatency.add(result.words.length ? result.finalLatency : undefined);
  if (below < 80) $("scroll").scrollTop = $("scroll").scrollHeight; // do not scroll if the user has scrolled up
}

/** List an event of a turn; `Update` has only words. */
function showTurn({ event, audio_window_end: end, end_of_turn_confidence: score }) {
  if (event === "Update") return;
  const row = document.createElement("li");
  row.dataset.event = event;
  row.textContent = `${event} · ${end.toFixed(2)} s${event.endsWith("EndOfTurn") ? ` · ${score.toFixed(2)}` : ""}`;
  $("turn-events").prepend(row);
  while ($("turn-events").children.length > SHOWN_EVENTS) $("turn-events").lastChild.remove();
}

/** Adjust the controls of the text, after a result with or without `words`. */
function shown(words) {
  if (words) $("hint").hidden = true;
  for (const button of OF_TEXT) button.disabled = transcript.isEmpty;
}

/** Show seconds of audio, and at what speed they were transcribed since `began` in milliseconds. */
function showAudio(seconds, began) {
  const speed = seconds / ((performance.now() - began) / 1000);
  $("audio-seconds").querySelector("output").value = seconds.toFixed(1);
  $("audio-seconds").querySelector("small").textContent = speed > 1.5 ? `${speed.toFixed(0)}× real time` : "real time";
}

function waiting({ error, seconds }) {
  const reason = REFUSALS[error.status]?.() ?? `Connection lost: ${error.message}.`;
  say("waiting", "Reconnecting…");
  complain(`${reason} Trying again in ${Math.max(1, Math.round(seconds))} s; no audio is lost.`);
}

function failed(error) {
  const detail = error.message && error.status !== 401 ? ` (${error.message})` : "";
  complain((REFUSALS[error.status]?.() ?? "The stream ended early.") + detail);
  if (error.status !== 401) return;
  $("settings").open = true;
  $("key").focus();
}

async function finished(current) {
  if (run !== current) return;
  run = null;
  await current.source?.stop();
  idle();
}

function idle() {
  say("idle", "Ready");
  busy(false);
  $("main").disabled = false;
}

/** Download the transcript as txt, srt or vtt. */
function save(form) {
  const text = form === "txt" ? `${transcript.text}\n` : subtitles(transcript.words, form);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = `transcript.${form}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function busy(on) {
  occupied = on;
  $("main").classList.toggle("running", on);
  $("main").disabled = on;
  $("main-label").textContent = on ? "Stop" : "Microphone";
  for (const id of ["file", "sample", "format", "turns"]) $(id).disabled = on;
}

function say(state, text) {
  $("status").dataset.state = state;
  $("status").textContent = text;
}

function complain(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

function wire() {
  $("main").onclick = () => {
    if (!run) useMicrophone();
    else if (run.stopping) run.abort(); // second click: close without the last results
    else run.stop();
  };
  $("sample").onclick = useSample;
  $("file").onchange = () => {
    for (const file of $("file").files) useRecording(file.name, file);
    $("file").value = ""; // so that the same file can be chosen again
  };
  for (const button of document.querySelectorAll("[data-form]")) button.onclick = () => save(button.dataset.form);
  $("copy").hidden = !navigator.clipboard; // absent on pages from http:// on another host
  $("copy").onclick = async () => {
    await navigator.clipboard.writeText(transcript.text);
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1500);
  };
  $("clear").onclick = () => {
    transcript.clear();
    $("hint").hidden = false;
    shown(false);
  };
  $("turns").onchange = () => ($("turn-card").hidden = !$("turns").checked);
  $("turns").onchange(); // a reloaded page keeps the switch
  $("terms").onchange = () => run?.configure(keyterms());
  $("key").value = sessionStorage.getItem("tutti-key") ?? "";
  $("key").onchange = () => {
    sessionStorage.setItem("tutti-key", apiKey());
    offerLanguages();
  };
  document.querySelector("form").onsubmit = (event) => event.preventDefault();
  $("settings").open = matchMedia("(min-width: 56rem)").matches;
  wireDrop();
  offerLanguages();
}

/** Offer the languages of the served models, if there are several, each with its native name. */
async function offerLanguages() {
  const key = apiKey();
  const answer = await fetch("v1/models", { headers: key ? { Authorization: `Token ${key}` } : {} }).catch(() => null);
  if (!answer?.ok) return; // without a valid key: use the server's default
  const { data } = await answer.json();
  const tags = [...new Set(data.flatMap(({ languages }) => languages))];
  const named = (tag) => new Option(new Intl.DisplayNames([tag], { type: "language" }).of(tag), tag);
  $("language").replaceChildren(...tags.map(named));
  for (const part of document.querySelectorAll("#language, [for=language]")) part.hidden = tags.length < 2;
}

function wireDrop() {
  const card = document.querySelector(".transcript");
  document.ondragover = (event) => event.preventDefault();
  document.ondragenter = () => card.classList.add("dropping");
  document.ondragleave = (event) => event.relatedTarget ?? card.classList.remove("dropping");
  document.ondrop = (event) => {
    event.preventDefault();
    card.classList.remove("dropping");
    const [file] = event.dataTransfer.files;
    if (file) useRecording(file.name, file);
  };
}

wire();
