"""The stylesheet of a report: light and dark, for print and for phones."""

LIGHT = """
  --page: #ffffff; --card: #f6f7f9; --ink: #1c2126; --soft: #565f69; --faint: #a3a3a3; --rule: #dde1e6;
  --good: #0b6b3a; --good-page: #edf7f0; --fair: #7d4e00; --fair-page: #fdf4e1; --bad: #a51d1d; --bad-page: #fdecec;
  --bar: #0072b2; --bar-down: #d55e00;"""
DARK = """
  --page: #15181d; --card: #1d2127; --ink: #e7eaee; --soft: #a9b2bc; --faint: #767d86; --rule: #343a42;
  --good: #6fd39c; --good-page: #14281d; --fair: #f0bd62; --fair-page: #2d2414; --bad: #ff9a9a; --bad-page: #351a1c;
  --bar: #3b9bd6; --bar-down: #e8854a;"""

STYLESHEET = (
    ":root { color-scheme: light dark;"
    + LIGHT
    + " }\n@media (prefers-color-scheme: dark) { :root {"
    + DARK
    + " } }"
    + """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
main { max-width: 50rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .3rem; }
p { margin: .5rem 0 .9rem; }
.byline { color: var(--soft); margin: 0 0 1.6rem; }
ul { padding-left: 1.25rem; margin: .4rem 0 1rem; }
li { margin: .2rem 0; }
code, pre { font: .88em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: .7rem .9rem;
  margin: .4rem 0 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }

.guarantee { border: 1px solid var(--tone); border-left: 6px solid var(--tone); border-radius: 8px;
  background: var(--tone-page); padding: 1.1rem 1.4rem 1.2rem; }
.good { --tone: var(--good); --tone-page: var(--good-page); }
.fair { --tone: var(--fair); --tone-page: var(--fair-page); }
.bad { --tone: var(--bad); --tone-page: var(--bad-page); }
.guarantee h2 { border: 0; padding: 0; margin: 0; font-size: .95rem; letter-spacing: .04em; text-transform: uppercase;
  color: var(--tone); }
.figures { display: flex; flex-wrap: wrap; gap: .3rem 2.4rem; margin: .6rem 0 .9rem; padding: 0; }
.figures div { display: flex; flex-direction: column-reverse; }
.figures dt { color: var(--soft); font-size: .85rem; font-weight: 400; margin: 0; }
.figures dd { margin: 0; font-size: 1.55rem; line-height: 1.25; font-weight: 600; font-variant-numeric: tabular-nums; }
blockquote { margin: 0; font-size: 1.02rem; }
.banner { border-radius: 8px; background: var(--tone); color: var(--page); padding: .9rem 1.4rem; margin: 0 0 1rem;
  font-weight: 600; }
.banner strong { display: block; font-size: 1.2rem; letter-spacing: .02em; }

dl { margin: .6rem 0 1rem; display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .35rem 1.2rem; }
dl.figures { display: flex; }
dt { font-weight: 600; }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }

figure { margin: 1rem 0 1.2rem; }
figure svg { display: block; width: 100%; max-width: 38rem; height: auto; color: var(--soft);
  font-family: inherit; stroke-linejoin: round; }
.shapes { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(16rem, 100%), 1fr)); gap: .4rem 1.6rem; }
.shapes svg { max-width: 26rem; }
.shapes figure { margin: .3rem 0; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }

table { border-collapse: collapse; width: 100%; margin: .6rem 0 1.2rem; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
table.narrow { max-width: 26rem; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding: .2rem 0 .4rem; }
th, td { text-align: left; vertical-align: top; padding: .38rem .9rem .38rem 0; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th, thead td { color: var(--soft); font-weight: 600; font-size: .85rem; border-bottom: 1.5px solid var(--faint);
  vertical-align: bottom; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 8.5rem; }
.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
.scroll th, .scroll td { white-space: nowrap; }
.size { width: 34%; min-width: 6rem; }
.size span { display: block; height: .7rem; margin-top: .38rem; border-radius: 2px; background: var(--bar);
  margin-left: var(--from); width: var(--long); }
.size .down { background: var(--bar-down); }
summary { cursor: pointer; color: var(--soft); margin: .4rem 0; }

@media (max-width: 34rem) {
  main { padding: 1.4rem 1rem 3rem; }
  h1 { font-size: 1.55rem; }
  h2 { margin-top: 2.2rem; }
  .guarantee { padding: .9rem 1rem 1rem; }
  .figures dd { font-size: 1.3rem; }
  dl { grid-template-columns: 1fr; gap: .1rem; }
  table { font-size: .86rem; }
  th, td { padding-right: .6rem; }
  .size { width: 22%; min-width: 3.5rem; }
  dl dd { margin-bottom: .55rem; }
  dl.figures { gap: .5rem 1.6rem; }
  dl.figures dd { margin-bottom: 0; }
}
@media print {
  :root {"""
    + LIGHT
    + """ }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  h2, h3, summary, caption { break-after: avoid; }
  tr, figure, .guarantee, .banner { break-inside: avoid; }
  figure svg { max-width: 13cm; }
  .scroll { overflow: visible; }
  .scroll th, .scroll td { white-space: normal; }
  details::details-content { content-visibility: visible; block-size: auto; }
  .banner, .guarantee, .size span { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
)
