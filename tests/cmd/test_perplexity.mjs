// `firn perplexity` against the same figure made here from `firn tokenize` and `firn logits`; its refusals.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const firn = join(process.env.FIRN_OUT ?? 'build', 'firn');
const model = 'models/firn-tiny-q8_0.gguf';
const dir = mkdtempSync(join(tmpdir(), 'firn-perplexity-'));
let failed = false;

function check(name, ok, note) {
    if (note !== undefined && !ok) console.log(`# ${note}`);
    console.log(`${ok ? 'ok' : 'not ok'} - ${name}`);
    failed = failed || !ok;
}

function run(...args) {
    return spawnSync(firn, args, { encoding: 'utf8' });
}

// Mean of -ln p over a window that begins with BOS, from raw logits.
function nllOfWindow(ids, flags) {
    const tokens = join(dir, 'ids');
    const out = join(dir, 'logits');
    writeFileSync(tokens, ids.join(','));
    const made = run('logits', '-m', model, '--tokens', tokens, '--out', out, ...flags);
    if (made.status !== 0) throw new Error(made.stderr);
    const bytes = readFileSync(out);
    const logits = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    const nVocab = logits.length / ids.length;
    let sum = 0;
    for (let i = 0; i + 1 < ids.length; i++) {
        const row = logits.subarray(i * nVocab, (i + 1) * nVocab);
        const max = row.reduce((a, b) => Math.max(a, b), -Infinity);
        const total = row.reduce((a, b) => a + Math.exp(b - max), 0);
        sum += Math.log(total) + max - row[ids[i + 1]];
    }
    return sum;
}

try {
    const text = 'It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in ' +
        'want of a wife. However little known the feelings or views of such a man may be on his first entering a ' +
        'neighbourhood, this truth is so well fixed in the minds of the surrounding families.\n'.repeat(3);
    const file = join(dir, 'text');
    writeFileSync(file, text);
    const ids = run('tokenize', '-m', model, '--ids', file).stdout.trim().split(/\s+/).map(Number);
    for (const kv of ['f32', 'f16', 'bf16', 'q8', 'q4']) {
        const window = 64;
        let sum = 0;
        for (let at = 0; at < ids.length; at += window - 1) {
            sum += nllOfWindow([1, ...ids.slice(at, at + window - 1)], ['--kv', kv]);
        }
        const said = run('perplexity', '-m', model, '--window', String(window), '--kv', kv, file);
        const [, count, nats] = said.stdout.match(/: (\d+) tokens, ([\d.]+) nats per token/) ?? [];
        check(`perplexity with ${kv} state is the mean over windows of what the logits say`,
            Number(count) === ids.length && Math.abs(Number(nats) - sum / ids.length) < 2e-5,
            `${said.stdout}${said.stderr}expected ${sum / ids.length} over ${ids.length}`);
    }
    const bytes = run('perplexity', '-m', model, file).stdout.match(/([\d.]+) nats per token.* ([\d.]+) bits per byte/);
    check('bits per byte count the bytes of the text',
        Math.abs(Number(bytes[2]) - Number(bytes[1]) * ids.length / Math.log(2) / (text.length + 1)) < 1e-3, bytes[0]);
    const one = run('perplexity', '-m', model, '--threads', '1', file).stdout;
    const two = run('perplexity', '-m', model, '--threads', '2', '--kernel', 'scalar', file).stdout;
    check('threads and kernels change no digit', one !== '' && one === two);

    writeFileSync(join(dir, 'empty'), '');
    const empty = run('perplexity', '-m', model, join(dir, 'empty'));
    check('an empty text is refused', empty.status === 1 && empty.stderr.includes('nothing to score'), empty.stderr);
    const missing = run('perplexity', '-m', model, join(dir, 'missing'));
    check('a missing file is named', missing.status === 1 && missing.stderr.includes('missing'), missing.stderr);
    const none = run('perplexity', '-m', model);
    check('a text is required', none.status === 2 && none.stderr.includes('FILE'), none.stderr);
} finally {
    rmSync(dir, { recursive: true });
}
process.exit(failed ? 1 : 0);
