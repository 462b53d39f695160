// Where a client belongs, from the log-densities of its records: the arithmetic of fedflux's placement, in the browser.

const sum = (values) => values.reduce((total, one) => total + one, 0);
const byLargest = (values) => [...values.keys()].sort((a, b) => values[b] - values[a] || a - b);

// to the nearest even number, as numpy rounds
const rounded = (value, digits) => {
  const scaled = value * 10 ** digits, below = Math.floor(scaled), rest = scaled - below;
  const up = rest > 0.5 || (rest === 0.5 && below % 2 !== 0);
  return (below + (up ? 1 : 0)) / 10 ** digits;
};

// densities (n, M, U), one record after another
export class Densities {
  constructor(data, [records, clusters, classes]) {
    Object.assign(this, { data, records, clusters, classes });
  }

  of(record, cluster) {
    const begin = (record * this.clusters + cluster) * this.classes;
    return this.data.subarray(begin, begin + this.classes);
  }
}

export const likelihoods = (densities, share, offset) => {
  const found = new Array(densities.clusters).fill(0);
  for (let m = 0; m < densities.clusters; m++) {
    for (let n = 0; n < densities.records; n++) {
      const terms = Array.from(densities.of(n, m), (one, u) => one + Math.log(share[m * densities.classes + u]));
      const top = Math.max(...terms);
      found[m] += top + Math.log(sum(terms.map((one) => Math.exp(one - top)))) + offset[m];
    }
  }
  return found;
};

export const posterior = (likelihood, worth, error, prior, placement) => {
  const { base, growth } = placement.temperature, { luck, cut, digits } = placement.constants;
  const best = byLargest(likelihood)[0];
  const log = likelihood.map((one, m) => {
    const heat = base * (1 + (luck + worth) * (error[best] + error[m])) + growth * worth;
    return Math.log(prior[m]) - (likelihood[best] - one) / heat;
  });
  const top = Math.max(...log), raw = log.map((one) => Math.exp(one - top)), total = sum(raw);
  return likeliest(raw.map((one) => one / total), cut, digits);
};

const likeliest = (values, cut, digits) => {
  const order = byLargest(values), kept = new Array(values.length).fill(0);
  let before = 0;
  for (const m of order) {
    kept[m] = before < 1 - cut ? values[m] : 0;
    before += values[m];
  }
  const total = sum(kept), whole = kept.map((one) => one / total);
  const coarse = whole.map((one) => rounded(one, digits));
  const found = sum(coarse) > 0.9 ? coarse : whole;
  return found.map((one) => Math.fround(one / sum(found)));
};

// the smallest misfit among the likeliest clusters: label shares are fitted by expectation maximisation
export const misfit = (densities, likelihood, share, base, constants) => {
  const { classes, records } = densities;
  let best = null;
  for (const m of byLargest(likelihood).slice(0, constants.candidates)) {
    const had = Array.from({ length: classes }, (_, u) => share[m * classes + u] > 0);
    const likely = [], away = [];
    for (let n = 0; n < records; n++) {
      const own = densities.of(n, m), top = Math.max(...own.filter((_, u) => had[u]));
      likely.push(Array.from(own, (one, u) => (had[u] ? Math.exp(one - top) : 0)));
      away.push(Array.from(own, (one, u) => 2 * (base[m * classes + u] - one)));
    }
    let shares = had.map((one) => (one ? 1 / had.filter(Boolean).length : 0)), taken = [];
    for (let step = 0; step < constants.steps; step++) {
      taken = likely.map((row) => {
        const weighed = row.map((one, u) => one * shares[u]), total = sum(weighed);
        return weighed.map((one) => one / total);
      });
      shares = shares.map((_, u) => sum(taken.map((row) => row[u])) / records);
    }
    const found = taken.map((row, n) => sum(row.map((one, u) => one * away[n][u])));
    const mean = sum(found) / records;
    if (best === null || mean < best.mean) best = { mean, count: records };
  }
  return best;
};

// p-value of a client that belongs being as far away
export const likeness = (found, usual, digits) => {
  if (usual.members < 3) return 1;
  const centre = (usual.between + usual.within / usual.usual) / usual.members;
  const error = usual.between + usual.within / Math.max(found.count, 1) + centre;
  const t = (usual.mean - found.mean) / Math.sqrt(Math.max(error, 1e-12));
  return rounded(studentBelow(t, usual.members - 1), digits);
};

export const studentBelow = (t, freedom) => {
  const tail = 0.5 * incompleteBeta(freedom / (freedom + t * t), freedom / 2, 0.5);
  return t > 0 ? 1 - tail : tail;
};

const LANCZOS = [
  676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
  -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
];

const logGamma = (x) => {
  if (x < 0.5) return Math.log(Math.PI / Math.sin(Math.PI * x)) - logGamma(1 - x);
  const t = x - 1 + LANCZOS.length - 0.5;
  const series = LANCZOS.reduce((total, one, k) => total + one / (x + k), 0.99999999999980993);
  return 0.5 * Math.log(2 * Math.PI) + (x - 0.5) * Math.log(t) - t + Math.log(series);
};

// I_x(a, b), by its continued fraction (Lentz)
const incompleteBeta = (x, a, b) => {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x)) / a;
  let c = 1, d = 1 / (1 - ((a + b) * x) / (a + 1)), found = d;
  for (let m = 1; m < 300; m++) {
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / (1 + even * d);
    c = 1 + even / c;
    found *= c * d;
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / (1 + odd * d);
    c = 1 + odd / c;
    found *= c * d;
    if (Math.abs(c * d - 1) < 1e-14) break;
  }
  return front * found;
};

// how much of each model is in the client's answer
export const weights = (belongs, confidence, novel, tensors, answering, models) => {
  const placed = novel && answering.novel_to_usual ? tensors.usual.data : belongs;
  const found = models.map((_, k) => sum(Array.from(placed, (one, m) => one * tensors.parts.data[m * models.length + k])));
  if (answering.general === null) return found;
  const share = 1 - (1 - answering.share) * confidence;
  return found.map((one, k) => one * (1 - share) + (models[k] === answering.general ? share : 0));
};

export const softmax = (scores) => {
  const top = Math.max(...scores), raw = Array.from(scores, (one) => Math.exp(one - top)), total = sum(raw);
  return raw.map((one) => one / total);
};

// of several labels each has a chance of its own
export const sigmoid = (scores) => Array.from(scores, (one) => 1 / (1 + Math.exp(-one)));

// everything that is said of a client
export const place = (densities, tensors, card) => {
  const { placement, clusters, answering } = card;
  const likelihood = likelihoods(densities, tensors.share.data, tensors.offset.data);
  const belongs = posterior(likelihood, densities.records, tensors.error.data, tensors.prior.data, placement);
  const chosen = byLargest(belongs)[0], cluster = clusters[chosen];
  const far = misfit(densities, likelihood, tensors.share.data, tensors.base.data, placement.constants);
  const score = cluster.calibrated ? likeness(far, placement.usual, placement.constants.digits) : 1;
  const novel = score < placement.level, confidence = belongs[chosen];
  const models = card.models.map((one) => one.id);
  return { cluster, belongs, confidence, score, novel, models, weights: weights(belongs, confidence, novel, tensors, answering, models) };
};
