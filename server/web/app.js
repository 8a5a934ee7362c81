/** The page: connects an audio source, a stream and the displays. Stores only the API key, in the tab's session. */

import { Latency, LevelMeter } from "./meters.js";
import { level, MESSAGE_S } from "./pcm.js";
import { openMicrophone, openPlayer, readRecording, SourceError } from "./sources.js";
import { Transcript } from "./transcript.js";
import { TuttiError, TuttiStream } from "./tutti.js";

const $ = (id) => document.getElementById(id);
const transcript = new Transcript($("log"), $("open"));
const meter = new LevelMeter($("level"));
const resultLatency = new Latency($("result-latency"));
const finalLatency = new Latency($("final-latency"));

let run = null; // the open stream and its source
let occupied = false; // true from the click that starts a run until it ends

// Messages for the user about refusals of the server, by HTTP status.
const REFUSALS = {
  401: () => ($("key").value ? "This API key is not valid on this server." : "This server requires an API key."),
  403: () => "This API key is not allowed to transcribe here.",
  429: () => "This API key has reached its limit of open streams.",
  503: () => "The server is full or restarting.",
};

function listenUrl() {
  const url = new URL("v1/listen", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

function keyterms() {
  return $("terms").value.split(",").map((term) => term.trim()).filter(Boolean);
}

function openStream(sampleRate) {
  const language = $("language").value || undefined;
  const query = { stable_words: true, smart_format: $("format").checked, keyterm: keyterms(), language };
  const stream = new TuttiStream(listenUrl(), { key: $("key").value.trim(), sampleRate, query, resumable: true });
  return stream
    .on("open", () => (say("live", "Listening"), complain(null)))
    .on("Results", show)
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

  count(pcm) {
    this.samples += pcm.length;
    meter.add(level(pcm));
    const seconds = this.samples / this.rate;
    $("audio-seconds").querySelector("output").value = seconds.toFixed(1);
    const speed = seconds / ((performance.now() - this.began) / 1000);
    const note = speed > 1.5 ? `${speed.toFixed(0)}× real time` : "real time";
    $("audio-seconds").querySelector("small").textContent = note;
  }

  /** Send audio from a live source until it ends or is stopped. */
  follow() {
    this.source.onEnd = () => this.stop();
    this.source.start((pcm) => {
      this.count(pcm);
      if (run === this) this.stream.send(pcm);
    });
  }

  /** Send a whole recording as fast as the connection allows. */
  async sendAll(pcm) {
    const size = Math.round(this.rate * MESSAGE_S);
    for (let at = 0; at < pcm.length && run === this && !this.stopping; at += size) {
      const message = pcm.slice(at, at + size);
      await this.stream.write(message);
      this.count(message);
    }
    await this.stop();
  }

  async stop() {
    if (this.stopping) return;
    this.stopping = true;
    say("waiting", "Finishing…");
    await this.source?.stop();
    await this.stream.close().catch(() => {}); // reported by "failed"
  }
}

async function begin(name, open, drive) {
  if (occupied) return;
  say("waiting", "Preparing…");
  complain(null);
  busy(true);
  for (const readout of [meter, resultLatency, finalLatency]) readout.clear();
  try {
    const opened = await open();
    transcript.begin(name);
    run = new Run(opened.pcm ? null : opened, opened.sampleRate);
    $("main").disabled = false;
    $("main").focus();
    await drive(run, opened);
  } catch (error) {
    if (error instanceof TuttiError) return; // reported by "failed"
    if (!(error instanceof SourceError)) console.error(error);
    complain(error instanceof SourceError ? error.message : `Could not start: ${error.message}`);
    if (run) run.stream.abort();
    else idle();
  }
}

const useMicrophone = () => begin("Microphone", openMicrophone, (current) => current.follow());

/** Transcribe a recording; `fetched` is a file or a promise of one: browsers only start audio during the click. */
function useRecording(name, fetched) {
  if ($("fast").checked) return begin(name, () => readRecording(fetched), (current, { pcm }) => current.sendAll(pcm));
  return begin(name, () => openPlayer(fetched), (current) => current.follow());
}

const useSample = () => useRecording("Sample", fetch("web/sample.flac").then((answer) => answer.blob()));

function show(result) {
  const below = $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight;
  transcript.show(result);
  if (result.words.length) $("hint").hidden = true;
  $("copy").disabled = $("clear").disabled = transcript.isEmpty;
  resultLatency.add(result.latency);
  finalLatency.add(result.words.length ? result.finalLatency : undefined);
  if (below < 80) $("scroll").scrollTop = $("scroll").scrollHeight; // do not scroll if the user has scrolled up
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

function busy(on) {
  occupied = on;
  $("main").classList.toggle("running", on);
  $("main").disabled = on;
  $("main-label").textContent = on ? "Stop" : "Microphone";
  for (const id of ["file", "sample", "format"]) $(id).disabled = on;
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
    else if (run.stopping) run.stream.abort(); // second click: close without the last results
    else run.stop();
  };
  $("sample").onclick = useSample;
  $("file").onchange = () => {
    for (const file of $("file").files) useRecording(file.name, file);
    $("file").value = ""; // so that the same file can be chosen again
  };
  $("copy").hidden = !navigator.clipboard; // absent on pages from http:// on another host
  $("copy").onclick = async () => {
    await navigator.clipboard.writeText(transcript.text);
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy"), 1500);
  };
  $("clear").onclick = () => {
    transcript.clear();
    $("hint").hidden = false;
    $("copy").disabled = $("clear").disabled = true;
  };
  $("terms").onchange = () => run?.stream.configure(keyterms());
  $("key").value = sessionStorage.getItem("tutti-key") ?? "";
  $("key").onchange = () => {
    sessionStorage.setItem("tutti-key", $("key").value.trim());
    offerLanguages();
  };
  document.querySelector("form").onsubmit = (event) => event.preventDefault();
  $("settings").open = matchMedia("(min-width: 56rem)").matches;
  wireDrop();
  offerLanguages();
}

/** Offer the languages of the served models, if there are several, each with its native name. */
async function offerLanguages() {
  const key = $("key").value.trim();
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
