'use strict';
// Drawing: elements, numbers for people, and line charts as SVG. Text comes from files that are not trusted, so it goes
// into the page as text nodes alone.

const SVG = 'http://www.w3.org/2000/svg';
function element(name, attributes, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'rect', 'text', 'title', 'desc', 'circle', 'defs', 'pattern', 'clipPath'].includes(name);
  const made = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// ---- numbers for people; null, Inf and NaN are a dash.
const DASH = '\u2013';
const known = (value) => typeof value === 'number' && Number.isFinite(value);
function number(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace('e+', 'e');
  return String(Number(value.toPrecision(4)));
}
const whole = (value) => (known(value) ? Math.round(value).toLocaleString('en-US') : DASH);
function scaled(value, units, factor) {
  let i = 0;
  while (Math.abs(value) >= factor && i + 1 < units.length) { value /= factor; ++i; }
  return `${Number(value.toPrecision(3))}${units[i]}`;
}
const bytes = (value) => (known(value) ? scaled(value, [' B', ' kB', ' MB', ' GB', ' TB'], 1000) : DASH);
const short = (value) => (known(value) ? (Math.abs(value) >= 1e4 ? scaled(value, ['', 'k', 'M', 'G', 'T'], 1000) : number(value)) : DASH);
function seconds(value) {
  if (!known(value)) return DASH;
  if (value === 0) return '0 s';
  if (value < 9.995e-4) return `${Number((value * 1e6).toPrecision(3))} \u00b5s`;
  if (value < 0.9995) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${Number(value.toPrecision(4))} s`;
}
function duration(value) {
  if (!known(value)) return DASH;
  if (value < 60) return seconds(value);
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
const percent = (value) => (known(value) ? `${(100 * value).toFixed(1)}%` : DASH);
const difference = (value) => (known(value) ? `${value >= 0 ? '+' : '\u2212'}${(100 * Math.abs(value)).toFixed(1)}%` : DASH);

// ---- a run is told from the others by its letter, dashes and marker; its colour only helps.
const DASHES = ['', '7 4', '2 3', '10 3 2 3', '14 4', '4 2', '1 4', '8 2 2 2 2 2'];
const style = (run) => ({ colour: `var(--c${run % 8})`, dashes: DASHES[run % 8], letter: letters(run) });
const letters = (run) => (run < 26 ? '' : letters(Math.floor(run / 26) - 1)) + String.fromCharCode(65 + (run % 26));
function marker(run, x, y) {
  const r = 4;
  const shapes = [
    `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
    `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    `M${x},${y - r - 1}L${x + r + 1},${y + r}H${x - r - 1}Z`,
    `M${x},${y - r - 1}L${x + r + 1},${y}L${x},${y + r + 1}L${x - r - 1},${y}Z`,
    `M${x},${y + r + 1}L${x + r + 1},${y - r}H${x - r - 1}Z`,
  ];
  return element('path', { d: shapes[run % shapes.length], style: `fill:var(--card);stroke:${style(run).colour};stroke-width:1.6` });
}
function swatch(run) {
  const { colour, dashes } = style(run);
  const line = element('line', { x1: 0, y1: 7, x2: 44, y2: 7, class: 'series', style: `stroke:${colour}`, 'stroke-dasharray': dashes });
  return element('svg', { class: 'swatch', viewBox: '0 0 44 14', 'aria-hidden': 'true' }, line, marker(run, 22, 7));
}

// ---- axes
function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 5, 10].map((f) => f * power).find((u) => u >= raw) || 10 * power;
  const list = [];
  for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; ++i) list.push(i * unit);
  return list;
}
function xTicks(low, high, most, kind) {
  if (kind === 'duration') {
    const [unit] = UNITS.duration.filter(([u]) => u <= high).pop() || [1];
    return ticks(low / unit, high / unit, most).map((t) => t * unit);
  }
  return ticks(low, high, most).filter((t) => Number.isInteger(t) || high - low < 1);
}
function logTicks(low, high) {
  const list = [];
  const decades = Math.log10(high / low), mantissas = decades < 1.5 ? [1, 2, 3, 5, 7] : decades < 3 ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / 6));
  for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high) + 1; p += every)
    for (const m of mantissas) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) list.push(m * 10 ** p);
  return list.length > 1 ? list : ticks(low, high, 4).filter((t) => t > 0);
}
// The labels of an axis, all of one form: one unit and one number of decimals, the smallest that tells them apart.
// `kind`: number, count, bytes, seconds.
const UNITS = {
  number: [[1, '']], count: [[1, ''], [1e3, 'k'], [1e6, 'M'], [1e9, 'G'], [1e12, 'T']],
  bytes: [[1, ' B'], [1e3, ' kB'], [1e6, ' MB'], [1e9, ' GB'], [1e12, ' TB']],
  seconds: [[1e-6, ' \u00b5s'], [1e-3, ' ms'], [1, ' s']],
  duration: [[1, ' s'], [60, ' min'], [3600, ' h']],
};
function labelsOf(places, kind) {
  const most = Math.max(...places.map(Math.abs)), sizes = places.map(Math.abs).filter((v) => v > 0);
  let [unit, name] = UNITS[kind].filter(([u]) => u <= most * (1 + 1e-9) && (kind !== 'count' || u === 1 || most >= 1e4)).pop() || UNITS[kind][0];
  if (kind === 'number' && most > 0 && (Math.min(...sizes) < 1e-4 || most >= 1e6)) {
    const power = Math.floor(Math.log10(most) + 1e-9);
    [unit, name] = [10 ** power, `e${power}`];
  }
  const values = places.map((v) => v / unit);
  if (kind === 'number' && sizes.length > 1 && most / Math.min(...sizes) > 200)  // a logarithmic axis
    return places.map((v) => v.toExponential(0).replace('e+', 'e'));
  const decimals = [0, 1, 2, 3, 4, 5, 6].find((d) => values.every((v) => Math.abs(v - Number(v.toFixed(d))) <= 1e-6 * Math.max(1, Math.abs(v)))) ?? 6;
  return values.map((v) => (v === 0 && (kind === 'number' || kind === 'count') ? '0' : `${v.toFixed(decimals)}${name}`));
}
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  return (v) => from + ((f(v) - a) / (b - a)) * (to - from);
}
function extent(lines, at, log) {
  let low = Infinity, high = -Infinity;
  for (const line of lines)
    for (const v of line[at]) if (known(v) && (!log || v > 0)) { low = Math.min(low, v); high = Math.max(high, v); }
  return [low, high];
}
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
  return xs.length === 0 ? -1 : Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

// An exponential moving average that begins at the first value, as TensorBoard and Weights & Biases smooth.
function smoothed(values, weight) {
  let mean = 0, total = 0;
  return values.map((v) => {
    if (!known(v)) return v;
    mean = weight * mean + (1 - weight) * v;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}
function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
// The range of what is drawn between two places. Without `all`, of a line that falls steeply at first or has a few
// spikes: what it does after the first tenth, but for its highest hundredth, where that is less than half of the whole.
function rangeOf(lines, begin, end, log, all) {
  const values = [], late = [];
  for (const line of lines)
    line.x.forEach((x, i) => {
      const y = line.y[i];
      if (x < begin || x > end || !known(y) || (log && y <= 0)) return;
      values.push(y);
      if (x >= begin + (end - begin) / 10) late.push(y);
    });
  if (values.length === 0) return null;
  const f = log ? Math.log : (v) => v, low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (all || late.length < 10) return [low, high];
  const top = quantile(late, 0.99), room = (f(top) - f(low)) * 0.1, useful = log ? Math.exp(f(top) + room) : top + room;
  return f(useful) - f(low) < 0.5 * (f(high) - f(low)) ? [low, useful] : [low, high];
}

// A chart of lines {run, x, y, faint, marks}. `options`: title, text (a sentence on it), unit (formats a value), kind (of
// its ticks, as labelsOf() has them) and xKind, xLabel, xText (formats a place), log, zero (the axis begins at 0), all
// (the whole range of values), view ([begin, end] of the axis; null: all), zoom(begin, end) (called when a reader has
// dragged over a part), limit ({value, label}), shares ([{run, x, y}], a strip of shares below), crosses ([{run, x,
// label}]), bests ([{run, x, y, label, short}]). Returns a figure.
function chart(lines, options, width) {
  const figure = element('figure', { class: 'card chart', 'data-chart': options.key }, element('h3', {}, options.title));
  if (options.text) figure.append(element('p', { class: 'soft' }, options.text));
  const strip = options.shares && options.shares.length > 0 ? 12 * options.shares.length + 6 : 0;
  const left = 56, right = 26, top = 12, height = 230 + strip, bottom = height - 40 - strip;
  const log = options.log && extent(lines, 'y', true)[0] > 0;
  const [, last] = extent(lines, 'x', false), [first, to] = options.view || [0, last];
  const range = rangeOf(lines, first, to, log, options.all || options.zero);
  let [low, high] = range || [0, 1];
  if (!range || !known(last)) {
    figure.append(element('p', { class: 'soft' }, 'Nothing was recorded.'));
    return figure;
  }
  if (options.limit && options.limit.value > low / 4 && options.limit.value < high * 4) { low = Math.min(low, options.limit.value); high = Math.max(high, options.limit.value); }
  if (options.zero && !log) low = Math.min(0, low);
  if (low === high) { const pad = Math.abs(low) / 10 || 1; high += pad; if (!options.zero || low < 0) low -= log ? low / 2 : pad; }
  else if (log) { const factor = (high / low) ** 0.05; low /= factor; high *= factor; }
  else { const pad = (high - low) * 0.05; high += pad; if (!options.zero || low < 0) low -= pad; }
  const end = to > first ? to : first + 1, within = (x) => x >= first && x <= end;
  const px = scale(first, end, left, width - right, false), py = scale(low, high, bottom, top, log);
  const svg = element('svg', { role: 'img', viewBox: `0 0 ${width} ${height}`, height, 'aria-label': `${options.title}. ${options.summary}` },
    element('title', {}, options.title), element('desc', {}, options.summary));
  const rows = (log ? logTicks(low, high) : ticks(low, high, 6)).filter((y) => py(y) >= top - 1 && py(y) <= bottom + 1), names = labelsOf(rows, options.kind);
  rows.forEach((y, i) => svg.append(element('line', { class: 'gridline', x1: left, x2: width - right, y1: py(y), y2: py(y) }),
    element('text', { class: 'tick', x: left - 8, y: py(y) + 4, 'text-anchor': 'end' }, names[i])));
  const columns = xTicks(first, end, width < 420 ? 4 : 6, options.xKind), places = labelsOf(columns, options.xKind);
  columns.forEach((x, i) => svg.append(element('line', { class: 'axis', x1: px(x), x2: px(x), y1: bottom, y2: bottom + 4 }),
    element('text', { class: 'tick', x: px(x), y: height - 22, 'text-anchor': 'middle' }, places[i])));
  // What is outside of the view, or above the range, is not drawn.
  const clip = `clip-${options.key}`, drawn = element('g', { 'clip-path': `url(#${clip})` });
  svg.append(element('defs', {}, element('clipPath', { id: clip }, element('rect', { x: left, y: top - 4, width: width - left - right, height: bottom - top + 8 }))));
  svg.append(element('line', { class: 'axis', x1: left, x2: width - right, y1: bottom, y2: bottom }),
    element('text', { x: (left + width - right) / 2, y: height - 4, 'text-anchor': 'middle' }, options.xLabel));
  if (options.limit && options.limit.value >= low && options.limit.value <= high) {
    const y = py(options.limit.value);
    svg.append(element('line', { class: 'limit', x1: left, x2: width - right, y1: y, y2: y }),
      element('text', { x: width - right, y: y - 5, 'text-anchor': 'end' }, options.limit.label));
  }
  const ends = [];
  for (const line of lines) {
    const { colour, dashes, letter } = style(line.run);
    let path = '', pen = 'M', lastPoint = null;
    const places = [];
    for (let i = 0; i < line.x.length; ++i) {
      if (!known(line.y[i]) || (log && line.y[i] <= 0)) { pen = 'M'; continue; }
      lastPoint = [px(line.x[i]), py(line.y[i])];
      if (within(line.x[i]) && line.y[i] <= high && line.y[i] >= low) places.push(lastPoint);
      path += `${pen}${lastPoint[0].toFixed(1)},${lastPoint[1].toFixed(1)}`;
      pen = 'L';
    }
    if (lastPoint === null) continue;
    drawn.append(element('path', { d: path, class: line.faint ? 'series faint' : 'series', style: `stroke:${colour}`,
      'stroke-dasharray': line.faint ? '' : dashes }));
    if (line.faint || places.length === 0) continue;
    const marks = line.marks ? places : places.length === 1 || lines.some((l) => l.run !== line.run) ?
      [0.15, 0.4, 0.65, 0.9].map((share) => places[Math.floor(share * (places.length - 1))]) : [];
    if (marks.length <= 200) for (const [x, y] of marks) svg.append(marker(line.run, x, y));
    const [x, y] = places[places.length - 1];
    ends.push({ x, y, letter, colour });
  }
  svg.append(drawn);
  const [, most] = rangeOf(lines, first, end, log, true);
  if (most > high) figure.append(element('p', { class: 'soft above' }, `Up to ${options.unit(most)}, above the chart.`));
  if (lines.some((line) => line.run !== lines[0].run)) {
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((e, i) => {  // letters of lines that end near each other stand below each other
      const near = ends.slice(0, i).filter((other) => Math.abs(other.x - e.x) < 14);
      e.at = Math.max(e.y, ...near.map((other) => other.at + 12));
    });
    for (const e of ends) svg.append(element('text', { class: 'letter', x: e.x + 8, y: e.at + 4, style: `fill:${e.colour}` }, e.letter));
  }
  (options.shares || []).forEach((share, i) => {
    const y = bottom + 6 + 12 * i, d = share.x.map((x, k) => (share.y[k] > 0 ?
      `M${px(x).toFixed(1)},${y + 8}v${(-8 * share.y[k]).toFixed(1)}` : '')).join('');
    svg.append(element('line', { class: 'gridline', x1: left, x2: width - right, y1: y + 8, y2: y + 8 }),
      element('path', { d, class: 'series', style: `stroke:${style(share.run).colour};stroke-width:${Math.max(1.5, (width - left - right) / 220)}` }),
      element('text', { x: left - 8, y: y + 9, 'text-anchor': 'end' }, options.shares.length > 1 ? `clipped ${style(share.run).letter}` : 'clipped'));
  });
  for (const best of (options.bests || []).filter((b) => within(b.x) && b.y >= low && b.y <= high)) {
    const right = px(best.x) + 12 + best.short.length * 7 > width;
    svg.append(element('circle', { class: 'best', cx: px(best.x), cy: py(best.y), r: 8, style: `stroke:${style(best.run).colour}` }, element('title', {}, best.label)),
      element('text', { class: 'best', x: px(best.x) + (right ? -12 : 12), y: py(best.y) - 10, 'text-anchor': right ? 'end' : 'start' }, best.short));
  }
  for (const cross of (options.crosses || []).filter((c) => within(c.x)))
    svg.append(element('text', { class: 'bad', x: px(cross.x), y: top + 8, 'text-anchor': 'middle' }, element('title', {}, cross.label), '\u2715'));
  const cursor = element('line', { class: 'cursor', y1: top, y2: bottom }), chosen = element('rect', { class: 'chosen', y: top, height: bottom - top, width: 0 });
  svg.append(cursor, chosen);
  const readout = element('div', { class: 'readout', 'aria-hidden': 'true' });
  const plot = element('div', { class: 'plot' }, svg, readout);
  const placeOf = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(width - right, Math.max(left, ((event.clientX - box.left) / box.width) * width));
  };
  const valueAt = (x) => first + ((x - left) / (width - right - left)) * (end - first);
  let from = null;
  plot.addEventListener('pointerdown', (event) => { if (event.button === 0) { from = placeOf(event); plot.setPointerCapture(event.pointerId); } });
  const release = (event) => {
    const x = placeOf(event), begin = from;
    from = null;
    chosen.setAttribute('width', 0);
    if (event.type === 'pointerup' && begin !== null && Math.abs(x - begin) > 8) options.zoom(valueAt(Math.min(x, begin)), valueAt(Math.max(x, begin)));
  };
  plot.addEventListener('pointerup', release);
  plot.addEventListener('pointercancel', release);
  plot.addEventListener('dblclick', () => options.zoom(null));
  plot.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect(), x = placeOf(event), value = valueAt(x);
    if (from !== null) { chosen.setAttribute('x', Math.min(x, from)); chosen.setAttribute('width', Math.abs(x - from)); }
    readout.replaceChildren(element('div', { class: 'soft' }, `${options.xLabel} ${options.xText(value)}`));
    for (const line of lines.filter((l) => !l.faint)) {
      const i = nearest(line.x, value);
      if (i >= 0) readout.append(element('div', {}, `${style(line.run).letter}  ${options.unit(line.y[i])}`));
    }
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x);
    cursor.style.visibility = readout.style.visibility = 'visible';
    const place = ((event.clientX - box.left) > box.width / 2) ? 'right' : 'left';
    readout.style.left = readout.style.right = '';
    readout.style[place] = `${left}px`;
  });
  plot.addEventListener('pointerleave', () => { cursor.style.visibility = readout.style.visibility = 'hidden'; });
  figure.append(plot, figures(lines.filter((l) => !l.faint), options, first, end));
  return figure;
}

// The table of a chart's figures, at up to twelve places of the axis.
function figures(lines, options, first, end) {
  const body = element('tbody', {});
  const longest = Math.max(...lines.map((l) => l.x.length)), rows = Math.min(12, longest);
  const shown = new Set();
  for (let i = 0; i < rows; ++i) {
    const at = rows > 1 ? first + ((end - first) * i) / (rows - 1) : first;
    const places = lines.map((line) => nearest(line.x, at));
    const x = lines[0].x[places[0]];
    if (shown.has(x)) continue;
    shown.add(x);
    body.append(element('tr', {}, element('td', { class: 'n' }, options.xText(x)),
      ...lines.map((line, k) => element('td', { class: 'n' }, line.x[line.x.length - 1] < at && places[k] === line.x.length - 1 && k > 0 ? DASH : options.unit(line.y[places[k]])))));
  }
  const head = element('thead', {}, element('tr', {}, element('th', { class: 'n', scope: 'col' }, options.xLabel),
    ...lines.map((line) => element('th', { class: 'n', scope: 'col' }, line.name || style(line.run).letter))));
  return element('details', { id: `figures-${options.key}` }, element('summary', {}, 'Figures'),
    element('div', { class: 'wide' }, element('table', {}, head, body)));
}
