'use strict';
// The page's sections, made from the data that stands in it as JSON.

const FIGURE_NAMES = {
  step_seconds: 'step', overlap_efficiency: 'overlap efficiency', device_seconds: 'device work of a step',
  host_adamw_seconds: 'AdamW on the host', device_bytes: 'device memory', pinned_bytes: 'pinned memory', host_bytes: 'host memory',
};
// Parts of a step: a short name, and a description.
const DEVICE_PARTS = {
  work: ['compute', 'computes'], host: ['CPU update', 'waits for AdamW on the CPU'],
  link: ['weight transfer', 'waits for updated weights on their way to the GPU'],
  stream: ['weight streaming', 'waits for streamed or gathered weights'], gradient: ['gradient buffer', 'waits for a free gradient buffer'],
  verdict: ['gradient norm', 'waits for the gradient norm'], checkpoint: ['checkpoint', 'waits for a checkpoint'],
  moving: ['gradient transfer', 'waits for gradients on their way to the CPU'],
};
const HOST_PARTS = {
  adamw: ['AdamW', 'runs AdamW'], other: ['other', 'other work'], gradient: ['backward pass', 'waits for gradients'],
  fetch: ['gradient transfer', 'waits for gradients on their way to the CPU'], place: ['buffers', 'waits for free buffers of optimizer state'],
  verdict: ['gradient norm', 'waits for the gradient norm'], send: ['weight transfer', 'waits for weights to leave'],
  checkpoint: ['checkpoint', 'waits for a checkpoint'],
};
const partOf = (names, name) => names[name] || [name, name];
const STATUS = {
  finished: 'finished', 'stopped early': 'stopped early', interrupted: 'interrupted, can be resumed',
  diverged: 'diverged', running: 'running', open: 'ended without a closing line',
};
const choices = { x: 'step', log: false, given: true, smoothing: 0, all: false, view: null, hidden: new Set() };
let data = null;

const cell = (text, kind, label) => element('td', { ...(kind ? { class: kind } : {}), ...(label ? { 'data-label': label } : {}) }, text);
const heads = (...names) => element('thead', {}, element('tr', {}, ...names.map(([name, kind]) => element('th', { scope: 'col', ...(kind ? { class: kind } : {}) }, name))));
const section = (id, title, ...children) => element('section', { id }, element('h2', {}, title), ...children);
const several = () => data.runs.length > 1;
const named = (run) => (several() ? [element('span', { class: 'letter' }, style(run.index).letter), ` ${run.name}`] : [run.name]);

const visible = () => data.runs.filter((run) => !choices.hidden.has(run.name));
const twoDigits = (n) => String(n).padStart(2, '0');
function moment(secondsSince1970) {
  if (!known(secondsSince1970)) return DASH;
  const d = new Date(secondsSince1970 * 1000);
  return `${d.getFullYear()}-${twoDigits(d.getMonth() + 1)}-${twoDigits(d.getDate())} ${twoDigits(d.getHours())}:${twoDigits(d.getMinutes())}`;
}
function stateOf(run) {
  const parts = [STATUS[run.status] || run.status], best = run.best_evaluation;
  if (run.status === 'stopped early' && best) parts.push(`no evaluation after that of step ${whole(best.step)} was better`);
  if (run.keeps_best && best && ['finished', 'stopped early'].includes(run.status)) parts.push(`the model is that of step ${whole(best.step)}`);
  if (known(run.seconds_left)) parts.push(`about ${duration(run.seconds_left)} left`);
  if (run.resumed.length > 0) parts.push(`resumed after step ${run.resumed.map(whole).join(', ')}`);
  return parts.join('; ');
}
const stepsOf = (run) => `${whole(run.last_step)}${run.total_steps ? ` of ${whole(run.total_steps)}` : ''}`;

// On a narrow screen, above the charts: a line for each run.
function stateLines() {
  return element('div', { class: 'states' }, ...data.runs.map((run) => element('p', {}, ...named(run),
    `: ${stateOf(run)}, step ${stepsOf(run)}, loss ${number(run.last_loss)}`)));
}

function runsTable() {
  const rows = data.runs.map((run) => element('tr', {},
    element('td', {}, ...(several() ? [swatch(run.index), ' '] : []), element('span', { class: 'letter' }, several() ? `${style(run.index).letter} ` : ''), run.name),
    cell(stateOf(run), 'state', 'state'), cell(stepsOf(run), 'n', 'steps'), cell(moment(run.started), '', 'started'),
    cell(short(run.tokens), 'n', 'tokens'), cell(duration(run.seconds), 'n', 'time in steps'),
    cell(short(run.tokens_per_s), 'n', 'tokens/s'),
    cell(`${number(run.first_loss)} \u2192 ${number(run.last_loss)}`, 'n', 'loss'),
    cell(run.best_evaluation ? `${number(run.best_evaluation.loss)} at ${whole(run.best_evaluation.step)}` : DASH, 'n', 'best evaluation'),
    cell(`${whole(run.clipped)} / ${whole(run.skipped)}`, 'n', 'clipped / skipped'),
    cell(`${run.model || DASH}, ${run.device || DASH}`, 'path', 'model and device')));
  const table = element('table', { class: 'runs stack' }, heads(['run'], ['state'], ['steps', 'n'], ['started'], ['tokens', 'n'], ['time in steps', 'n'],
    ['tokens/s', 'n'], ['loss', 'n'], ['best evaluation', 'n'], ['clipped / skipped', 'n'], ['model and device']), element('tbody', {}, ...rows));
  const notes = data.runs.flatMap((run) => run.notes.map((note) => element('p', { class: 'note' }, several() ? `${style(run.index).letter}: ` : '', note)));
  return element('div', { class: 'card' }, element('div', { class: 'wide' }, table), ...notes);
}

// ---- charts over the run
const AXES = { step: 'step', tokens: 'tokens', seconds: 'time in steps' };
function along(run, steps) {
  if (choices.x === 'step') return steps;
  const { step, [choices.x]: values } = run.axis;
  return steps.map((s) => {
    const right = step.findIndex((t) => t >= s), i = right < 0 ? step.length - 1 : right;
    if (i <= 0 || step[i] === s) return values[Math.max(i, 0)];
    return values[i - 1] + ((values[i] - values[i - 1]) * (s - step[i - 1])) / (step[i] - step[i - 1]);
  });
}
function lines(key, options = {}) {
  return visible().filter((run) => run.series[key]).map((run) => ({
    run: run.index, name: `${several() ? `${style(run.index).letter} ` : ''}${options.name || ''}`.trim() || options.short || 'value',
    x: along(run, run.series[key][0]), y: run.series[key][1], ...options,
  }));
}
function summaryOf(list, unit) {
  return list.filter((l) => !l.faint).map((l) => {
    const values = l.y.filter(known);
    return values.length === 0 ? '' : `${several() ? `Run ${style(l.run).letter}: ` : ''}from ${unit(values[0])} to ${unit(values[values.length - 1])}, least ${unit(Math.min(...values))}, most ${unit(Math.max(...values))}.`;
  }).join(' ');
}
const xText = (x) => (choices.x === 'seconds' ? duration(x) : whole(x));
// Noisy series: single steps faint, means strong; or smoothed, where the reader asks for it.
function noisyLines(key, short) {
  const weight = choices.smoothing;
  return visible().flatMap((run) => {
    const own = (list) => list.filter((l) => l.run === run.index), single = own(lines(key, { short })), mean = own(lines(`${key}_mean`, { name: 'mean' }));
    const base = mean.length > 0 ? mean : single;
    const strong = weight > 0 ? base.map((l) => ({ ...l, name: `${several() ? `${style(run.index).letter} ` : ''}smoothed`, y: smoothed(l.y, weight) })) : mean;
    return [...single.map((l) => ({ ...l, faint: strong.length > 0 })), ...strong];
  });
}
function clipping() {
  const limits = new Set(visible().map((run) => run.clip_at));
  const [limit] = limits;
  return limits.size === 1 && known(limit) ? { value: limit, label: `clipped above ${number(limit)}` } : null;
}
// Of all charts; without a place: everything again.
function zoom(begin, end) {
  const whole = choices.x === 'step';
  choices.view = begin === null ? null : [whole ? Math.floor(begin) : begin, whole ? Math.max(Math.ceil(end), Math.floor(begin) + 1) : end];
  render();
}
function charts(width) {
  const means = visible().map((run) => run.mean_of).filter((n) => n > 1), ofSteps = `means of ${[...new Set(means)].map(whole).join(' and ')} steps`;
  const faint = choices.smoothing > 0 ? `Faint: single steps. Strong: smoothed${means.length > 0 ? `, from ${ofSteps}` : ''}.` : means.length > 0 ? `Faint: single steps. Strong: ${ofSteps}.` : '';
  const bests = visible().filter((run) => run.best_evaluation).map((run) => ({ run: run.index, x: along(run, [run.best_evaluation.step])[0], y: run.best_evaluation.loss,
    short: several() ? `${style(run.index).letter} ${number(run.best_evaluation.loss)}` : `best: ${number(run.best_evaluation.loss)}`,
    label: `the best evaluation${several() ? ` of ${style(run.index).letter}` : ''}: ${number(run.best_evaluation.loss)} at step ${whole(run.best_evaluation.step)}` }));
  const skips = visible().flatMap((run) => run.skips.map((s) => ({ x: along(run, [s.step])[0], run: run.index,
    label: `step ${s.step} skipped: began in ${s.origin}, tensor ${s.tensor}` })));
  const shares = visible().filter((run) => run.clipped > 0).map((run) => ({ run: run.index, x: along(run, run.clip_share[0]), y: run.clip_share[1] }));
  const specs = [
    ['loss', 'Loss', noisyLines('loss', 'loss'), { text: faint, unit: number, kind: 'number', log: choices.log }],
    ['eval_loss', 'Evaluation loss', lines('eval_loss', { marks: true }), { text: bests.length > 0 ? 'The best is circled.' : '', unit: number, kind: 'number', log: choices.log, bests }],
    ['grad_norm', 'Gradient norm', noisyLines('grad_norm', 'norm'), { unit: number, kind: 'number', log: choices.log, limit: clipping(), shares, crosses: skips,
      text: `Before clipping.${shares.length > 0 ? ' The strip below: the share of steps that were clipped.' : ''}${skips.length > 0 ? ' \u2715: skipped, a gradient was not finite.' : ''}` }],
    ['lr', 'Learning rate', lines('lr'), { unit: number, kind: 'number', zero: true }],
    ['tokens_per_s', 'Tokens per second', noisyLines('tokens_per_s', 'tokens/s'), { unit: short, kind: 'count', zero: true }],
    ['step_time_s', 'Time of a step', noisyLines('step_time_s', 'time'), { unit: seconds, kind: 'seconds', zero: true }],
    ['host_memory', 'Host memory', lines('host_memory'), { unit: bytes, kind: 'bytes', zero: true, text: 'Resident memory of the process.' }],
    ['device_memory', 'Device memory', lines('device_memory'), { unit: bytes, kind: 'bytes', zero: true, text: 'Of the GPU, in use by the run.' }],
  ].filter(([, , list]) => list.some((l) => l.y.some(known)));
  return specs.map(([key, title, list, options]) => chart(list, { key, title, xLabel: AXES[choices.x], xText, xKind: choices.x === 'seconds' ? 'duration' : 'count', all: choices.all, view: choices.view, zoom,
    summary: summaryOf(list, options.unit), ...options }, width));
}

// ---- where a step's time went: a bar of parts, work solid, waits hatched
function bar(parts, names, longest, width, id) {
  const total = parts.reduce((sum, [, s]) => sum + s, 0), height = 30;
  const label = parts.filter(([, s]) => s > 0).map(([name, s]) => `${partOf(names, name)[0]} ${seconds(s)}`).join(', ');
  const svg = element('svg', { role: 'img', viewBox: `0 0 ${width} ${height}`, height, 'aria-label': label }, element('title', {}, label));
  let x = 0;
  parts.forEach(([name, s], i) => {
    const wide = longest > 0 ? (s / longest) * width : 0;
    if (wide < 0.5) return;
    const works = name === 'work' || name === 'adamw', hatch = `${id}-${i}`;
    svg.append(element('rect', { x, y: 0, width: wide, height, class: works ? 'work' : 'wait' }));
    if (!works && name !== 'other') {
      const step = 5 + (i % 3) * 3, turn = i % 2 === 0 ? 45 : -45;
      svg.append(element('defs', {}, element('pattern', { id: hatch, width: step, height: step, patternUnits: 'userSpaceOnUse', patternTransform: `rotate(${turn})` },
        element('path', { d: `M0,0V${step}`, class: 'hatch' }))), element('rect', { x, y: 0, width: wide, height, fill: `url(#${hatch})` }));
    }
    svg.append(element('path', { d: `M${x + wide},0V${height}`, class: 'edge' }));
    const text = `${partOf(names, name)[0]} ${percent(total > 0 ? s / total : 0)}`;
    if (wide > text.length * 7.2 + 10) {
      if (!works) svg.append(element('rect', { x: x + 5, y: 6, width: text.length * 7 + 6, height: 18, rx: 3, class: 'wait' }));
      svg.append(element('text', { x: x + 8, y: 20, class: works ? 'on-work' : 'on-wait' }, text));
    }
    x += wide;
  });
  return svg;
}
function timeOfRun(run, width) {
  const card = element('div', { class: 'card', 'data-time': run.index }, element('h3', {}, ...named(run)));
  const sides = [['device', 'GPU', DEVICE_PARTS], ['host', 'AdamW on the CPU', HOST_PARTS]];
  if (!run.parts && !run.planned_parts) return null;
  const rows = [];
  const all = [run.parts, run.planned_parts].filter(Boolean);
  const longest = Math.max(...all.flatMap((p) => [p.device, p.host].map((list) => list.reduce((sum, [, s]) => sum + s, 0))));
  for (const [side, title, names] of sides) {
    for (const [parts, kind] of [[run.parts, 'measured'], [run.planned_parts, 'planned']]) {
      if (!parts || parts[side].length === 0) continue;
      const total = parts[side].reduce((sum, [, s]) => sum + s, 0);
      card.append(element('p', { class: 'soft' }, `${title}, ${kind}: ${seconds(total)}`), bar(parts[side], names, longest, width, `h${run.index}-${side}-${kind}`));
    }
    const listed = run.parts ? run.parts[side] : run.planned_parts[side], planned = new Map(run.planned_parts ? run.planned_parts[side] : []);
    for (const [name, s] of listed)
      if (s > 0 || planned.get(name) > 0)
        rows.push(element('tr', {}, cell(side === 'device' ? 'GPU' : 'CPU', '', 'side'), cell(`${partOf(names, name)[0]}: ${partOf(names, name)[1]}`, 'v', 'part'), cell(run.parts ? seconds(s) : DASH, 'n', 'measured'), cell(planned.has(name) ? seconds(planned.get(name)) : DASH, 'n', 'planned')));
  }
  if (run.parts && known(run.parts.efficiency))
    card.append(element('p', {}, `Overlap efficiency ${run.parts.efficiency.toFixed(3)}${run.planned_parts && known(run.planned_parts.efficiency) ? `, planned ${run.planned_parts.efficiency.toFixed(3)}` : ''}: the longer of GPU compute and AdamW, as a share of the step.`));
  card.append(element('details', { id: `time-${run.index}` }, element('summary', {}, 'Figures'), element('div', { class: 'wide' },
    element('table', { class: 'stack' }, heads(['side'], ['part'], ['measured', 'n'], ['planned', 'n']), element('tbody', {}, ...rows)))));
  return card;
}

// ---- planned against measured, and memory by name
function amounts(planned, measured, most) {
  const width = (value) => `${Math.max(0, Math.min(1, value / most)) * 100}%`;
  const svg = element('svg', { 'aria-hidden': 'true', height: 16 });
  if (known(measured)) svg.append(element('rect', { class: 'measured', x: 0, y: 3, width: width(measured), height: 10 }));
  if (known(planned)) svg.append(element('rect', { class: 'planned', x: 0, y: 1, width: width(planned), height: 14 }));
  const td = cell('', 'bar');
  td.append(svg);
  return td;
}
function compareTable(run) {
  if (run.figures.length === 0) return null;
  const unit = (name) => (name.endsWith('_bytes') ? bytes : name.endsWith('_seconds') ? seconds : number);
  const rows = run.figures.map(([name, planned, measured]) => element('tr', {}, cell(FIGURE_NAMES[name] || name, 'v', 'figure'),
    cell(unit(name)(planned), 'n', 'planned'), cell(unit(name)(measured), 'n', 'measured'), cell(planned ? difference(measured / planned - 1) : DASH, 'n', 'difference'),
    amounts(planned, measured, Math.max(planned || 0, measured || 0) * 1.05)));
  return element('div', { class: 'card' }, element('h3', {}, ...named(run)), element('div', { class: 'wide' }, element('table', { class: 'stack' },
    heads(['figure'], ['planned', 'n'], ['measured', 'n'], ['difference', 'n'], ['dashed outline: planned']), element('tbody', {}, ...rows))));
}
function memoryTable(run) {
  if (run.memory.length === 0) return null;
  const sorted = [...run.memory].sort((a, b) => Math.max(b[2], b[3] || 0) - Math.max(a[2], a[3] || 0));
  const most = Math.max(sorted[0][2], sorted[0][3] || 0);
  const row = ([kind, name, planned, measured, phases]) => element('tr', {}, cell(name, 'v', 'what for'), cell(kind, '', 'kind'), cell(phases || 'always', '', 'when'),
    cell(bytes(planned), 'n', 'planned'), cell(bytes(measured), 'n', 'measured'), amounts(planned, measured, most));
  const table = (list) => element('div', { class: 'wide' }, element('table', { class: 'stack' },
    heads(['what for'], ['kind'], ['when'], ['planned', 'n'], ['measured', 'n'], ['dashed outline: planned']), element('tbody', {}, ...list.map(row))));
  const card = element('div', { class: 'card', 'data-memory': run.index }, element('h3', {}, ...named(run)), table(sorted.slice(0, 10)));
  if (sorted.length > 10)
    card.append(element('details', { id: `memory-${run.index}` }, element('summary', {}, `${sorted.length - 10} smaller ones`), table(sorted.slice(10))));
  return card;
}

// ---- texts that were generated, a table for each prompt: a row for each step, a column for each run
function sampleCell(sample, label) {
  if (!sample) return cell(DASH, 'v', label);
  const [text, reason] = sample;
  const notes = { length: '\u2026', 'not finite': '(the logits were not finite)' };
  const made = cell(text, 'v sample', label);
  if (notes[reason]) made.append(element('span', { class: 'soft' }, notes[reason]));
  return made;
}
function sampleTables() {
  const prompts = [...new Set(data.runs.flatMap((run) => run.samples.map((s) => s.prompt)))];
  return prompts.map((prompt, i) => {
    const columns = data.runs.map((run) => ({ title: several() ? style(run.index).letter : 'text',
      texts: new Map(run.samples.filter((s) => s.prompt === prompt).flatMap((s) => s.texts).map(([step, text, reason]) => [step, [text, reason]])) }))
      .filter(({ texts }) => texts.size > 0);
    const steps = [...new Set(columns.flatMap(({ texts }) => [...texts.keys()]))].sort((a, b) => a - b);
    const rows = steps.map((step) => element('tr', {}, cell(whole(step), 'n', 'step'), ...columns.map(({ title, texts }) => sampleCell(texts.get(step), title))));
    return element('div', { class: 'card', 'data-sample': i }, element('h3', {}, 'Prompt'), element('p', { class: 'sample' }, prompt), element('div', { class: 'wide' },
      element('table', { class: 'stack samples' }, heads(['step', 'n'], ...columns.map(({ title }) => [title])), element('tbody', {}, ...rows))));
  });
}

// ---- settings
function settingsTable() {
  const names = [...new Set(data.runs.flatMap((run) => run.settings.map(([name]) => name)))];
  if (names.length === 0) return null;
  const of = data.runs.map((run) => new Map(run.settings.map((s) => [s[0], s])));
  const rows = [];
  for (const name of names) {
    const entries = of.map((map) => map.get(name)), differs = several() && new Set(entries.map((e) => e && e[1])).size > 1;
    if (choices.given && !differs && entries.every((e) => !e || e[2] === 'default')) continue;
    rows.push(element('tr', differs ? { class: 'differs' } : {}, cell(name, '', 'setting'), ...entries.flatMap((e, i) => {
      const from = e ? `${e[2]}${e[3] ? ` (${e[3]})` : ''}${e[4] ? `; overrides ${e[4]}` : ''}` : '', letter = several() ? `${style(i).letter} ` : '';
      return [cell(e ? e[1] : DASH, 'v', `${letter}value`), cell(from, 'v soft', `${letter}origin`)];
    })));
  }
  const titles = data.runs.flatMap((run) => { const letter = several() ? `${style(run.index).letter} ` : ''; return [[`${letter}value`], [`${letter}origin`]]; });
  const given = box('given', several() ? ' Only those that differ or were given' : ' Only those that were given', choices.given, (on) => { choices.given = on; });
  given.classList.add('soft');
  return element('div', { class: 'card' }, given,
    element('div', { class: 'wide' }, element('table', { class: 'stack' }, heads(['setting'], ...titles), element('tbody', {}, ...rows))));
}

function box(id, text, checked, change) {
  const input = element('input', { type: 'checkbox', id });
  input.checked = checked;
  input.addEventListener('change', () => { change(input.checked); render(); });
  return element('label', {}, input, text);
}
function controls(narrow) {
  const select = element('select', { id: 'axis' }, ...Object.entries(AXES).map(([value, text]) => element('option', { value }, text)));
  select.value = choices.x;
  select.addEventListener('change', () => { choices.x = select.value; choices.view = null; render(); });
  const slider = element('input', { type: 'range', id: 'smoothing', min: 0, max: 0.99, step: 0.01 });
  slider.value = choices.smoothing;
  const value = element('output', { for: 'smoothing' }, choices.smoothing === 0 ? 'off' : choices.smoothing.toFixed(2));
  slider.addEventListener('change', () => { choices.smoothing = Number(slider.value); render(); });
  const reset = element('button', { type: 'button', id: 'reset' }, 'Show the whole run');
  reset.addEventListener('click', () => zoom(null));
  const runs = several() ? data.runs.map((run) => box(`show-${run.index}`, element('span', {}, swatch(run.index), ' ', ...named(run)), !choices.hidden.has(run.name),
    (shown) => { if (shown) choices.hidden.delete(run.name); else choices.hidden.add(run.name); })) : [];
  const all = [element('label', {}, 'x axis', select), element('label', {}, 'Smoothing', slider, value), box('log', 'Logarithmic', choices.log, (on) => { choices.log = on; }),
    box('all', 'Whole range of losses and norms', choices.all, (on) => { choices.all = on; }), ...(choices.view ? [reset] : []), ...runs,
    element('span', { class: 'soft' }, choices.view ? `${AXES[choices.x]} ${xText(choices.view[0])} to ${xText(choices.view[1])}` : 'Drag over a part of a chart to zoom, double-click to return.')];
  return narrow ? element('details', { class: 'view', id: 'view' }, element('summary', {}, 'View'), element('div', { class: 'controls' }, ...all)) : element('div', { class: 'controls' }, ...all);
}

function render() {
  const main = document.querySelector('main'), open = [...document.querySelectorAll('details[open]')].map((d) => d.id);
  const focused = document.activeElement && document.activeElement.id;
  const room = main.clientWidth - parseFloat(getComputedStyle(main).paddingLeft) * 2, columns = Math.max(1, Math.floor((room + 16) / 436));
  const narrow = window.matchMedia('(max-width: 560px)').matches, padding = narrow ? 26 : 34;
  const used = Math.min(columns, 3), width = Math.floor((room - 16 * (columns - 1)) / columns) - padding;
  const parts = (make) => data.runs.map(make).filter(Boolean);
  const optional = (id, title, list) => (list.length > 0 ? [section(id, title, ...list)] : []);
  const settings = settingsTable();
  const grid = element('div', { class: 'grid', 'data-columns': used }, ...charts(Math.max(220, width)));
  main.replaceChildren(...(narrow ? [stateLines(), controls(true), grid, runsTable()] : [runsTable(), controls(false), grid]),
    ...optional('time', 'Where a step\u2019s time went', parts((run) => timeOfRun(run, Math.max(220, room - padding)))),
    ...optional('plan', 'Planned and measured', parts(compareTable)), ...optional('memory', 'Memory by name', parts(memoryTable)),
    ...optional('samples', 'Generated texts', sampleTables()), ...optional('settings', 'Settings', settings ? [settings] : []));
  for (const id of open) { const d = document.getElementById(id); if (d) d.open = true; }
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
  document.documentElement.dataset.drawn = 'yes';
}

function take(text) {
  data = JSON.parse(text);
  data.runs.forEach((run, index) => { run.index = index; });
  document.title = `superoffload: ${data.runs.map((run) => run.name).join(', ')}`;
  document.querySelector('h1').textContent = data.runs.map((run) => run.name).join(', ');
  document.getElementById('state').textContent = data.watching ? 'The runs are going on; this page follows them.' : '';
  render();
}

// A watched page asks for new data until the runs have ended.
async function follow(last) {
  await new Promise((resolve) => setTimeout(resolve, data.watching * 1000));
  try {
    const answer = await fetch('data.json', { cache: 'no-store' });
    const text = await answer.text();
    if (answer.ok && text !== last) take(text);
    if (data.watching) follow(text);
  } catch (error) {
    document.getElementById('state').textContent = 'The program that served this page has ended; the page is as it was then.';
  }
}

const own = document.getElementById('data').textContent;
take(own);
let width = window.innerWidth;
window.addEventListener('resize', () => { if (window.innerWidth !== width) { width = window.innerWidth; render(); } });
if (data.watching) follow(own);
