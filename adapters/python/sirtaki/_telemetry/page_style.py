"""The style sheet and the frame of a page, for light and dark."""

from string import Template

#: Colors of series: blue, orange, green, yellow, violet, red; lighter ones on a dark page.
STYLE = """
:root{color-scheme:light dark;--page:#f5f5f2;--card:#fcfcfb;--text:#0b0b0b;--soft:#52514e;--grid:#e1e0d9;--axis:#a5a49b;
--c0:#2a78d6;--c1:#eb6834;--c2:#1baf7a;--c3:#eda100;--c4:#4a3aa7;--c5:#e34948;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--page:#111110;--card:#1a1a19;--text:#f5f5f2;--soft:#c3c2b7;--grid:#2c2c2a;
--axis:#55544f;--c0:#3987e5;--c1:#d95926;--c2:#199e70;--c3:#c98500;--c4:#9085e9;--c5:#e66767;--bad:#f2857d}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:24px 16px;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 2px}h2{font-size:16px;margin:0 0 8px}
.sub,.note,figcaption+.legend{color:var(--soft);font-size:13px}.note{margin:4px 0 0}
.bad{color:var(--bad);font-weight:600}
.tiles,.plots{display:grid;gap:12px;margin:16px 0}
.tiles{grid-template-columns:repeat(auto-fill,minmax(170px,1fr))}
.plots{grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}
.tile,figure,section{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:12px 14px;margin:0}
section{margin:12px 0;overflow-x:auto}
.tile b{display:block;font-size:20px;font-weight:600;white-space:nowrap}.tile span{color:var(--soft);font-size:13px}
figcaption{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;min-height:20px}
.key{display:inline-flex;align-items:center;gap:5px}
.swatch{width:10px;height:10px;border-radius:3px;display:inline-block;flex:none}.light{opacity:.45}
figure svg{display:block;width:100%;height:auto;margin-top:4px}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}
.line,.faint{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.faint{stroke-width:1;opacity:.45}
.area{opacity:.22;stroke:none}.hover{fill:transparent}.hover:hover{fill:var(--soft);fill-opacity:.14}
.bar{display:block;width:100%;min-width:90px;height:10px}.pale{opacity:.3}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:3px 10px 3px 0;border-bottom:1px solid var(--grid);vertical-align:middle}
th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.name{max-width:280px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
pre{margin:0;font:12px/1.5 ui-monospace,monospace;overflow-x:auto}
""" + "".join(
    f".line.c{i},.faint.c{i}{{stroke:var(--c{i})}}.area.c{i},.dot.c{i},.fill.c{i},.pale.c{i}{{fill:var(--c{i})}}"
    f".b{i}{{background:var(--c{i})}}\n"
    for i in range(6)
)

#: The document; $title is text, the others are HTML.
PAGE = Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>$title</title>
<style>$style</style>
</head>
<body>
<header><h1>$title</h1>$header</header>
<main>
<div class="tiles">$tiles</div>
<div class="plots">$plots</div>
$sections
</main>
</body>
</html>
"""
)
