// The same GGUF through llama.cpp and through Firn, run by run in turn, so that both see the same weather on a shared
// machine; prints medians, spread and ratios, and with --json a line per case.
//
//     node compare.mjs --firn ../../build/firn -m MODEL.gguf [--tiny MODEL.gguf] [--depth 0,4096] [--kv f16,q8,q4]
//                      [--rows 1,4] [--runs 5] [--prompt 512] [--gen 64] [--threads 2] [--json]
//
// The peer is timed with flash attention on and off, and the better median counts. The cost of its JavaScript per token,
// measured on a model that computes next to nothing, is printed and taken off its time.
import { spawnSync } from 'node:child_process';
import { parseArgs } from 'node:util';
import { openPeer, timeCase, timeOverhead } from './peer.mjs';

const { values: flags } = parseArgs({
    options: {
        firn: { type: 'string', default: '../../build/firn' },
        model: { type: 'string', short: 'm' },
        tiny: { type: 'string', default: '../../models/firn-tiny-q8_0.gguf' },
        depth: { type: 'string', default: '0,4096' },
        kv: { type: 'string', default: 'f16' },
        rows: { type: 'string', default: '1' },
        runs: { type: 'string', default: '5' },
        prompt: { type: 'string', default: '512' },
        gen: { type: 'string', default: '64' },
        threads: { type: 'string', default: '2' },
        json: { type: 'boolean', default: false },
    },
});
if (flags.model === undefined) {
    console.error('-m MODEL.gguf is required');
    process.exit(2);
}
const list = (text) => text.split(',');
const sorted = (xs) => [...xs].sort((a, b) => a - b);
const median = (xs) => sorted(xs)[xs.length >> 1];
const spread = (xs) => `${sorted(xs)[0].toPrecision(3)} .. ${sorted(xs).at(-1).toPrecision(3)}`;

function timeFirn(c) {
    const args = ['bench', '-m', flags.model, '--prompt', c.prompt, '--gen', c.gen, '--depth', c.depth, '--batch', c.rows,
        '--threads', c.threads, '--kv', c.kv, '--runs', 1, '--json'].map(String);
    const made = spawnSync(flags.firn, args, { encoding: 'utf8', maxBuffer: 1 << 24 });
    if (made.status !== 0) throw new Error(`firn ${args.join(' ')}: ${made.stderr}`);
    const report = JSON.parse(made.stdout);
    return {
        prefill: report.prefill_tokens_per_second.median,
        decode: report.decode[0].tokens_per_second.median,
        stream: report.stream_bytes_per_second.median,
        kernel: report.kernel,
    };
}

const threads = Number(flags.threads);
const overhead = await timeOverhead(flags.tiny, threads);
console.log(`JavaScript and sampling of the peer: ${(overhead * 1e6).toFixed(0)} microseconds per token, taken off its decode`);
console.log('kv    depth  rows  what     peer tok/s (spread)             firn tok/s (spread)             firn/peer  flash');
const peer = await openPeer(flags.model);
for (const kv of list(flags.kv)) {
    for (const depth of list(flags.depth).map(Number)) {
        for (const rows of list(flags.rows).map(Number)) {
            const c = { kv, depth, rows, threads, prompt: Number(flags.prompt), gen: Number(flags.gen) };
            const peers = { true: { prefill: [], decode: [] }, false: { prefill: [], decode: [] } };
            const ours = { prefill: [], decode: [], stream: [] };
            let kernel;
            for (let run = 0; run < Number(flags.runs); run++) {
                // Quantised values need flash attention in the peer.
                for (const flash of kv === 'f16' ? [false, true] : [true]) {
                    const t = await timeCase(peer, { ...c, flash }, 100 * run);
                    peers[flash].prefill.push(c.prompt / t.prefill);
                    peers[flash].decode.push((rows * c.gen) / Math.max(t.decode - overhead * rows * c.gen, 1e-9));
                }
                const mine = timeFirn(c);
                kernel = mine.kernel;
                for (const what of ['prefill', 'decode', 'stream']) ours[what].push(mine[what]);
            }
            for (const what of ['prefill', 'decode']) {
                const best = peers.false[what].length === 0 || median(peers.true[what]) > median(peers.false[what]);
                const theirs = peers[best][what];
                const ratio = median(ours[what]) / median(theirs);
                const side = (xs) => `${median(xs).toPrecision(4)} (${spread(xs)})`.padEnd(30);
                console.log(`${kv.padEnd(5)} ${String(depth).padStart(5)} ${String(rows).padStart(5)}  ${what.padEnd(8)} ` +
                    `${side(theirs)}  ${side(ours[what])}  ${ratio.toFixed(2).padStart(6)}     ${best ? 'on' : 'off'}`);
                if (flags.json) {
                    console.log(JSON.stringify({ kv, depth, rows, what, kernel, peer: theirs, flash: best, firn: ours[what],
                        stream_bytes_per_second: ours.stream, ratio }));
                }
            }
        }
    }
}
process.exit(0);
