"""text_corpus.py: seeded lines of text that try every corner of a tokenizer.

lines(seed, count, specials) yields bytes: the same for the same arguments on every machine.  Mixed languages, code, emoji with
joiners, control characters, runs of spaces, newlines and digits, special tokens at every position, scalars of all planes, invalid UTF-8.
"""
import random

SENTENCES = """
The quick brown fox jumps over the lazy dog. It's 5 o'clock; we'll see what they've done, I'm sure you'd agree.
Don't SHOUT: I'LL, YOU'RE, THEY'VE, HE'S, CAN'T, I'D, I'M. it'ſ odd, 'twas. rock'n'roll ''quoted'' 'S 'LLama 'Reality
Größe, Straße, naïve café, coöperate, Ångström, Łódź, Příliš žluťoučký kůň úpěl ďábelské ódy
L’été dernier, j’ai acheté 3 kg de pommes à 2,50 € — c’était cher ! « Vraiment ? »
Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка №42, Київ, Њујорк
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΆΈΉΊΌΎΏ ϊϋΐΰ Ὀδυσσεύς
我能吞下玻璃而不伤身体。今天是２０２４年３月１２日，气温是23.5℃。「引號」、《書名》
私はガラスを食べられます。カタカナ、ひらがな、漢字、ﾊﾝｶｸ、ー〜。それは私を傷つけません！
나는 유리를 먹을 수 있어요. 그래도 아프지 않아요. 한국어 ㄱㄴㄷ ㅏㅑㅓ
أنا قادر على أكل الزجاج و هذا لا يؤلمني. ١٢٣٤٥ ۱۲۳ ﷽ اللّٰه
אני יכול לאכול זכוכית וזה לא מזיק לי. שָׁלוֹם עֲלֵיכֶם
मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती. १२३ क्षत्रिय
আমি কাঁচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না। ১২৩
நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது.
ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ ๑๒๓ กำ น้ำ
ខ្ញុំអាចញុំកញ្ចក់បាន ដោយគ្មានបញ្ហា ဘာသာ မြန်မာ ພາສາລາວ
მინას ვჭამ და არა მტკივა. Կրնամ ապակի ուտել և ինծի անհանգիստ չըներ։
Tôi có thể ăn thủy tinh mà không hại gì. Tiếng Việt: ươ ế ệ ữ ợ
Είναι 3:14 — 1,234,567.89 + 10^-3 = 0x1F; 192.168.0.1:8080 2024-01-31T23:59:60Z 1234567890123
for (int i = 0; i < n; i++) { sum += a[i] * b[i]; } // dot product /* done */
def f(x: int) -> str:  return f"{x!r:>{10}}"  # comment
SELECT * FROM users WHERE name LIKE '%o''brien%' AND id <> 42;
<html><body class="a-b_c">&nbsp;&#x27;<br/></body></html> https://example.com/path?q=a%20b&c=d#frag
printf("%5.2f\\n", x->y.z); if(!p||*p==='\\0')return~0; $HOME ${PATH} `ls -la` #!/bin/sh
{"key": [1, 2.5e-10, null, true], "text": "a\\u00e9\\t"} @user #tag user@host.org C:\\\\Windows\\\\System32
ααα βββ ЖЖЖ ёёё ÀÉÎÕÜ àéîõü ﬁﬂﬀ ǅ ǈ ʰʷ ªº ⅣⅫ ①②③ ½¼¾ ²³¹ ₁₂₃ ℃℉Ω
HTTPServerError camelCaseWord PascalCASE snake_case SCREAMING_SNAKE kebab-case x86_64 utf8ToUtf16LE iPhone15Pro
""".strip().split("\n")

EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺", "🧑🏿‍💻", "#️⃣", "🫨", "🪿", "™️", "‼️", "🀄", "👨‍❤️‍💋‍👨", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "   ", "\u00a0", "\u3000", "\u2009", "\u2028", "\u2029", "\u0085", "\u180e",
          "\u200b", "\ufeff", "\x0b", "\x0c", "\x1c", "\x1f", "\u1680", "\u202f", "\t\t", " \t ", "\n\n\n", "\r\r", " \r\n \r\n"]
ODD = ["\x00", "\x01", "\x7f", "\x1b[0m", "\u200d", "\u200c", "\ufffd", "\uffff", "\U0010ffff", "\u0301", "e\u0301", "a\u0301\u0323", "\u1100\u1161\u11a8",
       "\uac00\u11a8", "\u0344", "\u0f73\u0f71", "\u2581", "\u2581\u2581", "\u0120", "\u010a", "Ġ", "Ċ", "\u00ad", "\u034f", "\u0300\u0345\u0334", "\u1e9b\u0323",
       "\u212b", "\u2126", "\uff21\uff22", "\ufb01", "\u0e33", "\u09c7\u09be", "\u0b47\u0b56", "\U0001d15e", "\U0001f468\u200d", "\u0130", "ß", "ẞ", "ſ", "K",
       "<0x0A>", "<0x41>", "<unk>", "<s>", "</s>", "<|endoftext|>", "[PAD100]", "\ue000", "\U000f0000", "\u0378", "\U0001e030", "\U00011f00", "\u1c89"]
BAD = [b"\xff", b"\xc0\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xbf\xbf", b"\xf8\x88\x80\x80\x80", b"\xe0\x9f\xbf",
       b"\xc3", b"\xf0\x80\x80\x80", b"\xfe", b"\xe2\x28\xa1", b"\xf1\x80\x80"]
BLOCKS = [(0x21, 0x7E), (0xA1, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x7FF), (0x900, 0xDFF), (0xE00, 0x109F), (0x10A0, 0x13FF),
          (0x1400, 0x1DFF), (0x1E00, 0x20CF), (0x20D0, 0x2BFF), (0x2C00, 0x2E7F), (0x3000, 0x33FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
          (0xE000, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x11FFF), (0x12000, 0x1AFFF), (0x1B000, 0x1FFFF), (0x20000, 0x3FFFF), (0xE0000, 0x10FFFF)]


def scalar(r):
    lo, hi = BLOCKS[r.randrange(len(BLOCKS))]
    c = r.randint(lo, hi)
    return chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"


class Pool:
    """Words and pieces cut from the samples, and the special tokens of one model."""

    def __init__(self, seed, specials):
        r = random.Random(seed)
        self.words = [w for s in SENTENCES for w in s.split(" ") if w]
        self.parts = [s[i:i + r.randint(1, 40)] for s in SENTENCES for i in range(0, len(s), 7)]
        self.specials = specials or ["<|x|>"]
        self.blocks = ["".join(scalar(r) for _ in range(r.randint(1, 8))) for _ in range(4000)]
        self.runs = [c * n for c in " \n\t\r0a-=_.'\u2581\u3000/\x00" for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100)]
        self.digits = [str(r.randrange(10 ** k)) for k in range(1, 22) for _ in range(6)] + ["１２３", "٣٤٥", "१२३४", "²³", "Ⅻ", "½", "3,141,592.65"]


def fragment(r, p):
    k = r.random()
    if k < 0.34:
        return r.choice(p.words)
    if k < 0.46:
        return r.choice(p.parts)
    if k < 0.56:
        return r.choice(SPACES)
    if k < 0.62:
        return r.choice(p.digits)
    if k < 0.70:
        return r.choice(p.blocks)
    if k < 0.75:
        return r.choice(EMOJI)
    if k < 0.82:
        return r.choice(ODD)
    if k < 0.85:
        return r.choice(p.runs)
    if k < 0.88:  # runs of any length and sign: equal sums of scores, which only the last bit tells apart
        return r.choice("/-.=*_#~+ae0★\u2581 ") * r.randint(2, 64)
    if k < 0.96:
        return r.choice(p.specials)
    return "".join(scalar(r) for _ in range(r.randint(1, 4)))


def line(r, p):
    n = min(1 + int(r.expovariate(0.22)), 40)
    spaced = r.random() < 0.6
    out = []
    for _ in range(n):
        f = fragment(r, p)
        out.append(f)
        if spaced and r.random() < 0.7:
            out.append(" ")
    text = "".join(out)
    if r.random() < 0.05:
        text = text.upper() if r.random() < 0.5 else text.title()
    data = text.encode("utf-8", "replace")
    if r.random() < 0.06:
        for _ in range(r.randint(1, 3)):
            at = r.randint(0, len(data))
            data = data[:at] + r.choice(BAD) + data[at:]
    elif r.random() < 0.03:
        at = r.randint(0, len(data))
        data = data[at:] if r.random() < 0.5 else data[:at]
    return data


def lines(seed, count, specials=()):
    r = random.Random(seed * 1000003 + 17)
    p = Pool(seed, list(specials))
    for _ in range(count):
        yield line(r, p)
