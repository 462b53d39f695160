// The page: fetches the bundle's graphs once, then describes, places and predicts here, with no further request.

import { batch, FileError, readFiles } from "/page/records.js";
import { Densities, place, sigmoid, softmax } from "/page/placing.js";
import { readTensors } from "/page/tensors.js";

const AHEAD = 64 * 2 ** 20; // bytes of models that are fetched before anybody asks
const at = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(value >= 0.9995 || (value > 0.1 && value < 0.99) ? 0 : 1)}\u00a0%`;
let ort, bundle, secret = "";

class KeyError extends Error {}

const make = (tag, text, kind) => {
  const one = document.createElement(tag);
  one.textContent = text;
  if (kind) one.className = kind;
  return one;
};

const say = (words) => {
  at("error").textContent = words;
  at("error").hidden = words === "";
};

const fetched = async (address, digest) => {
  const headers = secret ? { Authorization: `Bearer ${secret}` } : {};
  if (digest) headers["If-Match"] = `"${digest}"`;
  const response = await fetch(address, { headers });
  if (response.status === 401 || response.status === 403) throw new KeyError((await response.json()).error);
  if (response.status === 412) throw new FileError("the service has another bundle now: load this page again");
  if (!response.ok) throw new FileError(`the service refused: ${(await response.json()).error}`);
  return response;
};

class Bundle {
  static async load() {
    const told = await (await fetched("/v1/models")).json();
    const file = async (name) => (await fetched(`/v1/bundle/${name}`, told.files[name].sha256)).arrayBuffer();
    const [card, moments, extractor, densities] = await Promise.all(
      ["bundle.json", "placement.safetensors", "extractor.onnx", "densities.onnx"].map(file),
    );
    const found = new Bundle();
    found.told = told;
    found.card = JSON.parse(new TextDecoder().decode(card));
    found.tensors = readTensors(moments);
    found.extractor = await session(extractor);
    found.densities = await session(densities);
    found.models = new Map();
    const names = Object.keys(told.files).filter((name) => name.startsWith("models/") && name.endsWith(".onnx"));
    const size = names.reduce((total, name) => total + told.files[name].bytes, 0);
    if (size <= AHEAD) await Promise.all(found.card.models.map(({ id }) => found.model(id)));
    return found;
  }

  async model(id) {
    if (!this.models.has(id)) {
      const content = await fetched(`/v1/models/${id}?format=onnx`, this.told.files[`models/${id}.onnx`].sha256);
      this.models.set(id, await session(await content.arrayBuffer()));
    }
    return this.models.get(id);
  }

  async answer(records) {
    const told = batch(records, this.card.input), x = new ort.Tensor(told.type, told.data, told.dims);
    const latents = await run(this.extractor, x), found = await run(this.densities, latents);
    const placed = place(new Densities(found.data, found.dims), this.tensors, this.card);
    if (![...latents.data, ...placed.belongs, placed.score].every(Number.isFinite))
      throw new FileError("some numbers are too large for the models: scale the data as in training");
    const classes = this.card.class_names.length, mixed = records.map(() => new Array(classes).fill(0));
    const chances = this.card.several_labels ? sigmoid : softmax;
    for (const [k, id] of placed.models.entries()) {
      if (placed.weights[k] <= 0) continue;
      const scores = await run(await this.model(id), x);
      mixed.forEach((row, n) => {
        const own = chances(scores.data.subarray(n * classes, (n + 1) * classes));
        own.forEach((one, u) => (row[u] += placed.weights[k] * one));
      });
    }
    return { ...placed, probabilities: mixed };
  }
}

const session = (content) => ort.InferenceSession.create(content, { executionProviders: ["wasm"] });
const run = async (graph, input) => (await graph.run({ [graph.inputNames[0]]: input }))[graph.outputNames[0]];

const picture = (record, [channels, height, width]) => {
  const canvas = make("canvas", "");
  Object.assign(canvas, { width, height });
  const pixels = new ImageData(width, height), plane = height * width, unit = record.bytes ? 1 : 255;
  for (let k = 0; k < plane; k++)
    for (let c = 0; c < 4; c++) pixels.data[4 * k + c] = c === 3 ? 255 : unit * record.values[(channels === 1 ? 0 : c * plane) + k];
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
};

const show = (records, found) => {
  at("found").textContent = `It fits ${found.cluster.name}`;
  at("sure").textContent = percent(found.confidence);
  at("count").textContent = String(records.length);
  const unknown = !found.cluster.calibrated;
  at("novel").textContent = unknown ? "cannot be said" : `${found.novel ? "like no cluster" : "not novel"} (p\u00a0=\u00a0${found.score})`;
  at("novel").className = unknown ? "" : found.novel ? "novel" : "usual";
  at("novel").title = unknown ? "too little is known of this cluster" : "how often clients that belong look as odd";
  at("posterior").replaceChildren(
    ...bundle.card.clusters.map((cluster, m) => {
      const row = make("li", ""), meter = make("meter", "");
      meter.value = found.belongs[m];
      row.append(make("span", cluster.name), meter, make("span", percent(found.belongs[m])));
      return row;
    }),
  );
  const names = bundle.card.class_names, several = bundle.card.several_labels;
  const words = (own) => {
    const likely = [...own.keys()].sort((a, b) => own[b] - own[a]).filter((u, k) => (several ? own[u] >= 0.5 : k === 0));
    return likely.map((u) => `${names[u]} · ${percent(own[u])}`).join(", ") || "none";
  };
  at("records").replaceChildren(
    ...records.slice(0, 200).map((record, n) => {
      const card = make("li", "");
      if (bundle.card.input.kind === "pixels" && bundle.card.input.shape.length === 3) card.append(picture(record, bundle.card.input.shape));
      card.append(make("div", words(found.probabilities[n]), "answer"), make("div", record.name, "name"));
      return card;
    }),
  );
  at("answer").hidden = false;
};

const take = async (files) => {
  say("");
  at("answer").hidden = true;
  try {
    const records = await readFiles([...files], bundle.card.input), found = await bundle.answer(records);
    document.body.dataset.answer = JSON.stringify({ ...found, cluster: found.cluster.number });
    show(records, found);
  } catch (error) {
    say(error instanceof FileError ? error.message : `this could not be computed (${error.message})`);
  }
};

const begin = async () => {
  say("");
  try {
    bundle = await Bundle.load();
    const { clusters, class_names: names, input, clients } = bundle.card;
    const kind = input.kind === "pixels" ? `images of ${input.shape.slice(1).join(" × ")} pixels` : `records of ${input.shape.join(" × ")} numbers`;
    at("about").textContent = `${clients} clients trained models of ${clusters.length} clusters for ${kind} and ${names.length} classes. Give a few records: this page finds the cluster that fits and answers with its models.`;
    at("key").hidden = true;
    at("give").hidden = false;
    document.body.dataset.ready = "yes";
  } catch (error) {
    at("key").hidden = !(error instanceof KeyError);
    at("about").textContent = "";
    if (!(error instanceof KeyError) || secret) say(error.message);
  }
};

at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  secret = at("secret").value;
  begin();
});
at("files").addEventListener("change", (event) => take(event.target.files));
for (const kind of ["dragover", "dragleave", "drop"])
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });

try {
  ort = await import("/page/ort.wasm.bundle.min.mjs");
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { wasm: "/page/ort-wasm-simd-threaded.wasm" };
  await begin();
} catch (error) {
  say(`this page cannot begin: ${error.message}`);
}
