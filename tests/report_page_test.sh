#!/bin/bash
# Opens the page of `superoffload report` in a browser without a window, at two widths, light and dark, and looks at it
# by a script that is put into it.
# usage: report_page_test.sh PROGRAM
# With SHOTS=DIRECTORY the pages are also drawn there, for people.
set -eu
program=$1
for browser in chromium-headless-shell chromium google-chrome ""; do
  [ -n "$browser" ] || { echo "skipped, no chromium-headless-shell here"; exit 77; }
  ! command -v "$browser" >/dev/null || break
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0
fail() { echo "report_page_test: $1" >&2; failures=$((failures + 1)); }

# record DIRECTORY STEPS OF: a run's record, in which step 7 was skipped. Its names try to end the script they stand in.
record() {
  mkdir -p "$1"
  awk -v steps="$2" -v total="$3" 'BEGIN {
    evil = "</script><img src=x onerror=alert(1)><!--"
    memory = "{\"kind\":\"pinned\",\"name\":\"" evil "\",\"planned\":1000000},{\"kind\":\"device\",\"name\":\"weights\",\"planned\":5000000}"
    parts = "\"overlap_efficiency\":0.9,\"device_seconds\":{\"work\":0.9,\"host\":0.06,\"link\":0.04},\"host_seconds\":{\"adamw\":0.6,\"gradient\":0.4}"
    printf "{\"step\":0,\"start\":{\"program\":\"1\",\"model\":\"%s\",\"device\":\"CPU\",\"ranks\":1,\"total_steps\":%d,\"time\":1764300000,", evil, total
    printf "\"settings\":[{\"name\":\"max_grad_norm\",\"value\":\"1\",\"origin\":\"default\"},{\"name\":\"lr\",\"value\":\"%s\",\"origin\":\"file\",\"where\":\"%s\"}],", steps, evil
    printf "\"memory\":[%s],\"plan\":{\"step_seconds\":1,%s}}}\n", memory, parts
    for (s = 1; s <= steps; s++) {
      if (s % 10 == 1) printf "{\"step\":%d,\"eval_loss\":%g}\n", s - 1, 3 - s / steps
      if (s == 7) {
        printf "{\"step\":7,\"loss\":null,\"grad_norm\":null,\"clip\":null,\"lr\":1e-5,\"tokens\":100,\"step_time_s\":1,\"skipped\":true,\"skipped_tensor\":\"%s\",\"skipped_origin\":\"the loss\"}\n", evil
        continue
      }
      norm = 0.5 + (s % 5) / 4
      printf "{\"step\":%d,\"epoch\":1,\"loss\":%g,\"grad_norm\":%g,\"clip\":%g,\"lr\":%g,\"tokens\":100,\"step_time_s\":1,\"tokens_per_s\":100,", s, 3 - s / steps + (s % 3) / 9 + (s < 5 ? 8 : 0), norm, (norm > 1 ? 1 / norm : 1), 1e-5 * s / steps
      printf "\"host_memory_bytes\":1000000,\"device_memory_bytes\":5000000,%s}\n", parts
    }
    printf "{\"step\":%d,\"summary\":{\"step_seconds\":{\"planned\":1,\"measured\":1.1,\"difference\":0.1}},\"run\":{\"outcome\":\"finished\"},\"memory\":[%s]}\n", steps, memory
  }' >"$1/metrics.jsonl"
  awk -v steps="$2" 'BEGIN {
    long = "word"
    for (i = 0; i < 200; i++) long = long "word"
    for (s = 0; s <= steps; s += 20) {
      printf "{\"step\":%d,\"sample\":1,\"prompt\":\"</script><b>\",\"text\":\"</script><img src=x onerror=alert(1)> %d\",\"tokens\":1,\"finish_reason\":\"length\"}\n", s, s
      printf "{\"step\":%d,\"sample\":2,\"prompt\":\"%s\",\"text\":\"one\\n  two %s\",\"tokens\":1,\"finish_reason\":\"eos\"}\n", s, long, long
    }
  }' >"$1/samples.jsonl"
}
record "a<script>throw 1<" 300 300
record b 40 60
"$program" report "a<script>throw 1<" b --output page.html 2>log || { cat log; exit 1; }

# Before the page's own scripts: whatever goes wrong is noted. Behind them: what a reader would see.
cat >before <<'SCRIPT'
<script>
window.wrong = [];
window.addEventListener('error', (event) => window.wrong.push(event.message || 'a part did not load'), true);
document.addEventListener('securitypolicyviolation', (event) => window.wrong.push(`loads ${event.blockedURI}`));
for (const name of ['error', 'warn']) console[name] = (...words) => window.wrong.push(words.join(' '));
window.alert = (text) => window.wrong.push(`alert ${text}`);
</script>
SCRIPT
cat >behind <<'SCRIPT'
<script>
function look() {
  const wrong = window.wrong, all = (selector) => [...document.querySelectorAll(selector)];
  const say = (text) => wrong.push(text);
  if (document.documentElement.scrollWidth > window.innerWidth) say(`wider than the window: ${document.documentElement.scrollWidth}`);
  const shown = document.querySelector('main');
  for (const word of ['verdict', 'link']) if (shown.textContent.includes(word)) say(`a word of our own: ${word}`);
  if (!shown.textContent.includes('stopped early; no evaluation after that of step 30 was better')) say('nothing says that a run stopped early');
  if (!document.querySelector('.runs').textContent.includes('2025-11-')) say('no start time');
  if (!choices.view && all('figure[data-chart=eval_loss] circle.best').length !== 2) say('the best steps are not marked');
  const first = document.querySelector('figure[data-chart=loss]').getBoundingClientRect().top < document.querySelector('.runs').getBoundingClientRect().top;
  if (first !== window.innerWidth < 560) say('the order of losses and tables');
  if (shown.innerHTML.includes('NaN') || shown.textContent.includes('undefined')) say('shows NaN or undefined');
  for (const id of ['time', 'plan', 'memory', 'samples', 'settings']) if (!document.getElementById(id)) say(`no section ${id}`);
  const charts = all('figure[data-chart]').map((figure) => figure.dataset.chart).join(' ');
  if (charts !== 'loss eval_loss grad_norm lr tokens_per_s step_time_s host_memory device_memory') say(`charts: ${charts}`);
  for (const svg of all('svg')) {
    if (svg.getAttribute('aria-hidden') === 'true') continue;
    if (svg.getAttribute('role') !== 'img' || !svg.getAttribute('aria-label') || !svg.querySelector('title')) say('a picture has no name');
  }
  for (const chart of all('figure[data-chart]')) {
    const lines = [...chart.querySelectorAll('path.series:not(.faint)')];
    if (new Set(lines.slice(0, 2).map((line) => line.getAttribute('stroke-dasharray'))).size !== 2) say(`${chart.dataset.chart}: lines differ by colour alone`);
    if (chart.querySelectorAll('svg text.letter').length !== 2) say(`${chart.dataset.chart}: no letters`);
    for (const end of ['end', 'middle']) {
      const forms = [...chart.querySelectorAll(`svg text.tick[text-anchor=${end}]`)].map((t) => t.textContent).filter((t) => t !== '0').map((t) => t.replace(/[0-9]+/, '').replace(/[0-9]/g, '9'));
      if (!document.getElementById('log').checked && new Set(forms).size > 1) say(`${chart.dataset.chart}: ticks of several forms: ${forms}`);
    }
    if (chart.querySelectorAll('details tbody tr').length < 2) say(`${chart.dataset.chart}: no figures`);
    const box = chart.getBoundingClientRect();
    for (const text of chart.querySelectorAll('svg text')) {
      const at = text.getBoundingClientRect();
      if (at.left < box.left || at.right > box.right) say(`${chart.dataset.chart}: "${text.textContent}" leaves its card`);
      if (parseFloat(getComputedStyle(text).fontSize) < 11) say(`${chart.dataset.chart}: small text`);
    }
  }
  if (all('#samples .card').length !== 2) say('prompts are missing');
  for (const card of all('#samples .card')) {
    if ([...card.querySelectorAll('th')].map((th) => th.textContent).join(' ') !== 'step A B') say('samples: not a column for each run');
    if (card.querySelectorAll('tbody tr').length < 16) say('samples: steps are missing');
  }
  const text = document.querySelector('#samples td.sample');
  if (!text.textContent.startsWith('</scr' + 'ipt><img src=x')) say('a text was changed');
  if (getComputedStyle(text).whiteSpace !== 'pre-wrap') say('lines of a text run together');
  const ids = all('[id]').map((e) => e.id);
  if (new Set(ids).size !== ids.length) say('an id stands twice');
  // WCAG's contrast of text and what is behind it.
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
  for (const e of all('h1, h2, h3, p, td, th, summary, label, svg text:not(.on-work):not(.on-wait)')) {
    const style = getComputedStyle(e), [a, b] = [light(e.closest('svg') ? style.fill : style.color), light(behind(e.closest('svg') ? e.closest('svg').parentElement : e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) { say(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}: ${e.tagName} "${e.textContent.slice(0, 30)}"`); break; }
  }
}
look();
for (const choice of ['tokens', 'seconds']) {
  const axis = document.getElementById('axis');
  axis.value = choice;
  axis.dispatchEvent(new Event('change'));
  look();
}
// Losses of 11 in the first steps leave room for those of 2 to 3 after them.
const lossTicks = () => [...document.querySelectorAll('figure[data-chart=loss] svg text.tick[text-anchor=end]')].map((t) => Number(t.textContent));
const expect = (right, text) => { if (!right) window.wrong.push(text); };
expect(Math.max(...lossTicks()) < 5 && document.querySelector('figure[data-chart=loss] .above'), 'the first drop takes the chart');
document.getElementById('all').click();
expect(Math.max(...lossTicks()) >= 10, 'not the whole range');
document.getElementById('all').click();
const strong = () => document.querySelector('figure[data-chart=loss] path.series:not(.faint)').getAttribute('d');
const rough = strong(), slider = document.getElementById('smoothing');
slider.value = 0.9;
slider.dispatchEvent(new Event('change'));
expect(strong() !== rough && document.querySelector('figure[data-chart=loss]').textContent.includes('smoothed'), 'nothing is smoothed');
document.getElementById('show-1').click();
expect(document.querySelectorAll('figure[data-chart=loss] text.letter').length === 0 && document.querySelectorAll('circle.best').length === 1, 'a hidden run is shown');
document.getElementById('show-1').click();
const axis = document.getElementById('axis');
axis.value = 'step';
axis.dispatchEvent(new Event('change'));
zoom(5, 20);
const steps = [...document.querySelectorAll('figure[data-chart=lr] svg text.tick[text-anchor=middle]')].map((t) => Number(t.textContent));
expect(Math.min(...steps) >= 5 && Math.max(...steps) <= 20, `zoomed to 5 to 20, ticks ${steps}`);
look();
document.getElementById('reset').click();
for (const id of ['log', 'given']) { document.getElementById(id).click(); look(); }
for (const d of document.querySelectorAll('details')) d.open = true;
look();
if (document.querySelector('figure[data-chart=grad_norm] text.bad title').textContent.indexOf('</scr' + 'ipt>') < 0) window.wrong.push('a name was changed');
const found = document.createElement('pre');
found.id = 'found';
found.textContent = window.wrong.length === 0 ? `all well at ${window.innerWidth}, ${matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'}, ground ${getComputedStyle(document.body).backgroundColor}` : [...new Set(window.wrong)].join('; ');
document.body.append(found);
</script>
SCRIPT
awk -v before="$(cat before)" 'NR == FNR { behind = behind $0 "\n"; next }
  { print } /^<head>$/ { while ((getline line < "before") > 0) print line }
  END { printf "%s", behind }' behind page.html >probed.html

look_at() {  # width, 0 for dark and 1 for light, what the script should find
  found=$(timeout 120 "$browser" --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --user-data-dir="$folder/profile" \
    --window-size="$1,3000" --blink-settings=preferredColorScheme="$2" --dump-dom "file://$folder/probed.html" 2>browser.log |
    sed -n 's|.*<pre id="found">\(.*\)</pre>.*|\1|p')
  [ "$found" = "$3" ] || { fail "at $1, scheme $2: '$found', expected '$3'"; tail -n 3 browser.log >&2; }
  [ -z "${SHOTS:-}" ] || "$browser" --no-sandbox --disable-gpu --hide-scrollbars --window-size="$1,4000" \
    --blink-settings=preferredColorScheme="$2" --screenshot="$SHOTS/report-$1-$2.png" "file://$folder/page.html" 2>/dev/null
}
look_at 1400 1 "all well at 1400, light, ground rgb(246, 246, 243)"
look_at 1400 0 "all well at 1400, dark, ground rgb(20, 23, 26)"
look_at 400 1 "all well at 400, light, ground rgb(246, 246, 243)"
look_at 400 0 "all well at 400, dark, ground rgb(20, 23, 26)"
[ "$failures" = 0 ]
