// A stand-in for SageMaker's router, for test_sagemaker.py: AWS's event stream over HTTP/2 on one side, and on the other a
// WebSocket to the container, as AWS documents both. It checks frames, signatures' presence and the service model's limits.
//
//     node sagemaker_router.cjs CERTIFICATE KEY CONTAINER
//
// It prints its port, then a line a stream: path and query as sent. Ends with its standard input.
"use strict";

const { createSecureServer } = require("node:http2");
const { readFileSync } = require("node:fs");
const { crc32 } = require("node:zlib");
const WebSocket = require("ws");

const [certificate, key, container] = process.argv.slice(2);
const tell = (event, more = {}) => process.stdout.write(`${JSON.stringify({ event, ...more })}\n`);
const OUTER_BYTES = 12; // lengths of a message and of its headers, and a checksum; another checksum follows the payload
const STRING = 7;
const SIZES = { 0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16 }; // bytes of a header's value, by its type
const PATH = /^[A-Za-z0-9\-._]+(?:\/[A-Za-z0-9\-._]+)*$/;
const PAIR = "[a-zA-Z0-9][A-Za-z0-9_-]*=(?:[A-Za-z0-9._~\\-]|%[0-9A-Fa-f]{2})+";
const QUERY = new RegExp(`^${PAIR}(?:&${PAIR})*$`);
const PATH_CHARACTERS = 100;
const QUERY_CHARACTERS = 2_048;

// Headers and payload of one whole message.
function parse(message) {
  const headersLength = message.readUInt32BE(4);
  if (crc32(message.subarray(0, 8)) !== message.readUInt32BE(8)) throw new Error("checksum of the prelude");
  if (crc32(message.subarray(0, -4)) !== message.readUInt32BE(message.length - 4)) throw new Error("checksum of a message");
  const headers = {};
  const end = OUTER_BYTES + headersLength;
  for (let at = OUTER_BYTES; at < end; ) {
    const name = message.toString("utf8", at + 1, at + 1 + message[at]);
    at += 1 + message[at];
    const type = message[at++];
    const size = type in SIZES ? SIZES[type] : message.readUInt16BE(at);
    if (!(type in SIZES)) at += 2;
    headers[name] = type === STRING ? message.toString("utf8", at, at + size) : message.subarray(at, at + size);
    at += size;
  }
  return { headers, payload: message.subarray(end, -4) };
}

function frame(headers, payload) {
  const parts = Object.entries(headers).map(([name, value]) => {
    const head = Buffer.from([name.length, ...Buffer.from(name), STRING, value.length >> 8, value.length & 255]);
    return Buffer.concat([head, Buffer.from(value)]);
  });
  const body = Buffer.concat(parts);
  const message = Buffer.alloc(OUTER_BYTES + body.length + payload.length + 4);
  message.writeUInt32BE(message.length, 0);
  message.writeUInt32BE(body.length, 4);
  message.writeUInt32BE(crc32(message.subarray(0, 8)), 8);
  body.copy(message, OUTER_BYTES);
  payload.copy(message, OUTER_BYTES + body.length);
  message.writeUInt32BE(crc32(message.subarray(0, -4)), message.length - 4);
  return message;
}

function refuse(stream, status, kind, more) {
  stream.respond({ ":status": status, "content-type": "application/json", "x-amzn-errortype": kind });
  stream.end(JSON.stringify(more));
}

function serve(stream, headers) {
  const path = headers["x-amzn-sagemaker-model-invocation-path"] ?? "";
  const query = headers["x-amzn-sagemaker-model-query-string"] ?? "";
  tell("stream", { path, query });
  const asked = `${headers[":method"]} ${headers[":path"]}`;
  const wrong =
    (!/^POST \/endpoints\/[^/]+\/invocations-bidirectional-stream\??$/.test(asked) && asked) ||
    (!headers.authorization?.startsWith("AWS4-HMAC-SHA256 ") && "no signature") ||
    (path && (!PATH.test(path) || path.length > PATH_CHARACTERS) && `ModelInvocationPath: ${path}`) ||
    (query && (!QUERY.test(query) || query.length > QUERY_CHARACTERS) && `ModelQueryString: ${query}`);
  if (wrong) return refuse(stream, 400, "InputValidationError", { Message: wrong });

  const url = `ws://${container}/${path || "invocations-bidirectional-stream"}${query && `?${query}`}`;
  const socket = new WebSocket(url, { perMessageDeflate: false });
  const early = [];
  const send = (data, options) => (socket.readyState === WebSocket.OPEN ? socket.send(data, options) : early.push([data, options]));
  socket.on("unexpected-response", (_, answer) => {
    let text = "";
    answer.on("data", (data) => (text += data));
    answer.on("end", () => {
      const Message = `Received client error (${answer.statusCode}) from primary with message "${text}".`;
      const more = { Message, OriginalStatusCode: answer.statusCode, OriginalMessage: text };
      refuse(stream, 424, "ModelError", more);
    });
  });
  socket.on("open", () => {
    stream.respond({ ":status": 200, "content-type": "application/vnd.amazon.eventstream" });
    for (const [data, options] of early) socket.send(data, options);
  });
  socket.on("message", (data, binary) => {
    if (stream.closed) return;
    const head = { ":message-type": "event", ":event-type": "PayloadPart", ":content-type": "application/octet-stream" };
    stream.write(frame({ ...head, DataType: binary ? "BINARY" : "UTF8" }, data));
  });
  socket.on("close", (code, reason) => {
    tell("closed", { code });
    if (stream.closed || !stream.headersSent) return;
    if (code !== 1000) {
      const head = { ":message-type": "exception", ":exception-type": "ModelStreamError", ":content-type": "application/json" };
      stream.write(frame(head, Buffer.from(JSON.stringify({ Message: `${code} ${reason}`, ErrorCode: String(code) }))));
    }
    stream.end();
  });
  socket.on("error", () => {}); // a refusal is an unexpected response, the rest a close

  let received = Buffer.alloc(0);
  stream.on("data", (data) => {
    received = Buffer.concat([received, data]);
    while (received.length >= OUTER_BYTES && received.length >= received.readUInt32BE(0)) {
      const signed = parse(received.subarray(0, received.readUInt32BE(0)));
      received = received.subarray(received.readUInt32BE(0));
      if (!signed.headers[":chunk-signature"]) throw new Error("a message without its signature");
      if (!signed.payload.length) continue; // the last one
      const part = parse(signed.payload);
      if (part.headers[":event-type"] !== "PayloadPart") throw new Error(part.headers[":event-type"]);
      send(part.payload, { binary: part.headers.DataType !== "UTF8" });
    }
  });
  stream.on("end", () => (socket.readyState === WebSocket.CONNECTING ? socket.terminate() : socket.close(1000)));
  stream.on("error", () => socket.terminate());
}

const server = createSecureServer({ cert: readFileSync(certificate), key: readFileSync(key) });
server.on("stream", serve);
server.listen(0, "127.0.0.1", () => tell("listening", { port: server.address().port }));
process.stdin.on("end", () => process.exit()).resume();
