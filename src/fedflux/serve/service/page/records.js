// A person's files as records that the graphs take. All of it happens here; no file is sent.

const LABELS = ["label", "y", "client", "group", "cluster"]; // columns of a CSV that are no features

export class FileError extends Error {}

const count = (shape) => shape.reduce((total, one) => total * one, 1);

const imageRecord = async (file, [channels, height, width]) => {
  let image;
  try {
    image = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new FileError(`${file.name} is no image that this browser can read`);
  }
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  const rgba = context.getImageData(0, 0, width, height).data, values = new Float64Array(channels * height * width);
  for (let k = 0; k < height * width; k++) {
    const [r, g, b] = rgba.subarray(4 * k, 4 * k + 3);
    // grey as Pillow makes it: ITU-R 601, in integers
    if (channels === 1) values[k] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
    else for (let c = 0; c < channels; c++) values[c * height * width + k] = [r, g, b][c];
  }
  return { name: file.name, values, bytes: true };
};

const csvRecords = async (file, { shape, grey }) => {
  const plane = count(shape.slice(1)), sizes = `${grey ? `${plane} or ` : ""}${count(shape)}`;
  const lines = (await file.text()).split(/\r?\n/).filter((line) => line.trim() !== "");
  if (!lines.length) throw new FileError(`${file.name} is empty`);
  const cells = lines.map((line) => line.split(/[,;\t]/).map((one) => one.trim()));
  const named = cells[0].some((one) => one !== "" && !Number.isFinite(Number(one)));
  const kept = cells[0].map((name, k) => k).filter((k) => !named || !LABELS.includes(cells[0][k].toLowerCase()));
  return cells.slice(named ? 1 : 0).map((row, k) => {
    let values = Float64Array.from(kept, (column) => (row[column] === "" ? NaN : Number(row[column])));
    const line = k + (named ? 2 : 1);
    if (grey && values.length === plane) values = Float64Array.from({ length: count(shape) }, (_, at) => values[at % plane]);
    if (values.length !== count(shape) || row.length !== cells[0].length)
      throw new FileError(`${file.name}, line ${line}: ${row.length} values, but a record has ${sizes}`);
    if (!values.every(Number.isFinite)) throw new FileError(`${file.name}, line ${line}: a value is missing or no number`);
    return { name: `line ${line}`, values, bytes: null };
  });
};

// files, in their order, as records
export const readFiles = async (files, form) => {
  const found = [];
  for (const file of files) {
    const table = /\.(csv|tsv|txt)$/i.test(file.name) || file.type === "text/csv";
    if (!table && form.kind !== "pixels") throw new FileError(`${file.name} is no CSV, and this service's records are no images`);
    found.push(...(table ? await csvRecords(file, form) : [await imageRecord(file, form.shape)]));
  }
  if (!found.length) throw new FileError("no record was given");
  if (form.kind === "pixels") {
    const large = found.some((one) => one.bytes === null && one.values.some((value) => value > 1));
    for (const one of found) one.bytes ??= large; // a table of bytes, or of pixels from 0 to 1
  }
  return found;
};

// a batch of records, in the numbers that the graphs take
export const batch = (records, form) => {
  const size = count(form.shape);
  const Kind = { pixels: Float32Array, plain: Float32Array, wide: Float64Array, integers: BigInt64Array }[form.kind];
  const data = new Kind(records.length * size);
  records.forEach((one, n) => {
    one.values.forEach((value, k) => {
      const pixel = one.bytes ? Math.fround(value / 255) : value;
      data[n * size + k] = form.kind === "integers" ? BigInt(Math.round(value)) : pixel;
    });
  });
  const type = { pixels: "float32", plain: "float32", wide: "float64", integers: "int64" }[form.kind];
  return { type, data, dims: [records.length, ...form.shape] };
};
