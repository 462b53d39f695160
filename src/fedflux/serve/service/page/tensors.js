// Reads safetensors: named arrays behind a header of JSON.

const half = (bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * 2 ** -14 * (fraction / 1024);
  return exponent === 31 ? (fraction ? NaN : sign * Infinity) : sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
};

const READ = {
  F64: [8, (view, at) => view.getFloat64(at, true)],
  F32: [4, (view, at) => view.getFloat32(at, true)],
  F16: [2, (view, at) => half(view.getUint16(at, true))],
  I8: [1, (view, at) => view.getInt8(at)],
};

export const readTensors = (buffer) => {
  const view = new DataView(buffer), length = Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [name, told] of Object.entries(header)) {
    if (!(told.dtype in READ)) continue;
    const [size, read] = READ[told.dtype], begin = 8 + length + told.data_offsets[0];
    const count = (told.data_offsets[1] - told.data_offsets[0]) / size;
    found[name] = { shape: told.shape, data: Float64Array.from({ length: count }, (_, k) => read(view, begin + k * size)) };
  }
  return found;
};
