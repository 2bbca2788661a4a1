// Texts for comparing tokenizers: deterministic, from one seed, built of things that tokenizers get wrong.

// mulberry32: small, and good enough to pick from lists.
export function randomSource(seed) {
    let state = seed >>> 0;
    const next = () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let z = state;
        z = Math.imul(z ^ (z >>> 15), z | 1);
        z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
        return (z ^ (z >>> 14)) >>> 0;
    };
    return {
        below: (bound) => next() % bound,
        pick: (list) => list[next() % list.length],
    };
}

const samples = [
    'The cold tier keeps what the model has already read.', "It's they'll we'VE I'd he'S don't O'Reilly 'tis ''s",
    'naïve café, Ærøskøbing, Straße, œuvre, İstanbul ığdır', 'Съешь же ещё этих мягких французских булок',
    'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία', 'איך בלש תפס גמל רץ', 'نص حكيم له سر قاطع وذو شأن عظيم', 'ऋषियों को सताने वाले दुष्ट राक्षसों',
    'เป็นมนุษย์สุดประเสริฐเลิศคุณค่า', '視野無限廣，窗外有藍天', '我能吞下玻璃而不伤身体。', 'いろはにほへと ちりぬるを ガギグゲゴ', '다람쥐 헌 쳇바퀴에 타고파',
    'ქართული ანბანი', 'Հայերեն լեզու', 'አማርኛ ቋንቋ', 'தமிழ் மொழி', 'ភាសាខ្មែរ', 'བོད་སྐད་', 'ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐌰𐌱𐌲 𒀀𒁀',
    'int main(void)\n{\n\treturn x->y[0] != 0 ? ~1u : -1;\n}\n', 'def f(x):\n    return {k: v**2 for k, v in x.items()}\n', '<div class="a&amp;b">\r\n  text\r\n</div>',
    'SELECT * FROM t WHERE a<>b;--', 'https://example.com/a_b?c=d%20e#f', '{"a":[1,2.5e-3,null,"\\u00e9"]}', '$\\frac{1}{2}\\sum_{i=0}^{n} x_i$', '#!/bin/sh -eu',
];
const emoji = ['🙂', '👩‍👩‍👧‍👦', '👍🏽', '🏳️‍🌈', '🇫🇮🇩🇪', '❤️', '☃', '1️⃣', '🧑🏿‍🚀', '\u{1F1E6}', '🦙'];
const digits = ['0', '12', '345', '6789', '3.14159', '1,000,000', '٣٤٥', '१२३', '๔๕', '１２３', '½', '²³', 'Ⅻ', '①②③', '𝟘𝟙𝟚', '৭৮', '一二三'];
const marks = ['e\u0301', 'a\u0308\u0323', 'n\u0303', 'Z\u0351\u036b\u0343', 'o\u0302\u0301', '\u0301', 'क्षि', 'กำ', 'ا\u064b\u0651', '\u05d1\u05bc', 'ᄒ\u1161ᆫ', 'Å\u030a'];
const spaces = [' ', '  ', '   ', '        ', '\t', '\t\t', '\n', '\n\n', '\r\n', '\r', '\u00a0', '\u2003', '\u3000', '\u200b', '\u2028', '\u000b', '\f', ' \n ', '\n  \n', '\u180e', '\u1680'];
const controls = ['\u0000', '\u0001', '\u0007', '\u001b[0m', '\u007f', '\u009f', '\u00ad', '\u200d', '\u200e', '\u202e', '\ufffd', '\ufffe', '\u{e0001}', '\u{10ffff}'];
const specials = ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<think>', '</think>', '<tool_call>', '<s>', '</s>', '<unk>', '[INST]', '[/INST]', '<|eot_id|>',
    '<|begin_of_text|>', '<|start_header_id|>', '<|reserved_special_token_12|>', '<|im_start', '<0x0A>', '<|', '|>', '<｜end▁of▁sentence｜>', '<|fim_prefix|>'];
const punctuation = ['.', ',', '!', '?', ';', ':', '-', '--', '—', '…', '“', '”', '‘', '’', "'", '"', '(', ')', '[', ']', '{', '}', '/', '\\', '//', '***', '===', '¿', '。', '、', '«', '€', '£', '∑', '→', '`', '```', '~', '_', '@', '#', '%', '^', '&', '+', '$', ',,', ',,,'];
// What only some definitions of white space, letters or case know: see the differences named in the test.
const disputed = ['\ufeff', '\u0085', "'ſay", "x'ſ", ' \ufeff ', '\u0085\n', '▁', 'a▁b'];

const blocks = [[0x20, 0x7e], [0xa1, 0x17f], [0x370, 0x3ff], [0x400, 0x4ff], [0x5d0, 0x5ea], [0x620, 0x64a], [0x905, 0x939], [0xe01, 0xe3a], [0x1e00, 0x1eff], [0x2010, 0x2027],
    [0x2190, 0x21ff], [0x2200, 0x22ff], [0x2500, 0x257f], [0x3041, 0x3096], [0x30a1, 0x30fa], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xff01, 0xff5e], [0x1f300, 0x1f5ff], [0x10330, 0x1034a], [0x1d400, 0x1d454]];

function characters(random) {
    const [first, last] = random.pick(blocks);
    let text = '';
    for (let n = 1 + random.below(12); n > 0; n--) {
        text += String.fromCodePoint(first + random.below(last - first + 1));
    }
    return text;
}

function words(random) {
    const sample = Array.from(random.pick(samples));
    const start = random.below(sample.length);
    return sample.slice(start, start + 1 + random.below(40)).join('');
}

export function makeTexts(count, seed) {
    const random = randomSource(seed);
    const parts = [words, words, characters, (r) => r.pick(emoji), (r) => r.pick(digits), (r) => r.pick(marks), (r) => r.pick(spaces), (r) => r.pick(spaces), (r) => r.pick(punctuation),
        (r) => r.pick(controls), (r) => r.pick(specials), (r) => r.pick(spaces).repeat(1 + r.below(20)), (r) => r.pick(punctuation).repeat(1 + r.below(12))];
    const texts = ['', ' ', '\n', ...samples, ...specials, ...disputed, 'a'.repeat(400), ' '.repeat(300), '日本語'.repeat(60), '🙂'.repeat(40)];
    while (texts.length < count) {
        let text = '';
        for (let n = 1 + random.below(12); n > 0; n--) {
            // One text in ten or so has something disputed.
            text += random.below(80) === 0 ? random.pick(disputed) : random.pick(parts)(random);
        }
        texts.push(text);
    }
    return texts;
}
