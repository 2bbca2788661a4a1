// The same GGUF through llama.cpp and through Firn, run by run in turn, so that both see the same weather on a shared
// machine; prints medians, spread and ratios. With --json a line per case as bench/results/ keeps them, and the table on
// standard error.
//
//     node compare.mjs --firn ../../build/firn -m MODEL.gguf [--tiny MODEL.gguf] [--depth 0,4096] [--kv f16,q8,q4]
//                      [--rows 1,4] [--runs 5] [--prompt 512] [--gen 64] [--threads 2] [--flash off,on]
//                      [--side both|peer|firn] [--read N] [--json]
//
// A depth is made up by Firn (`firn bench --made-up`) and read once by the peer, for each setting of flash attention. With
// --read N it reads N tokens, and their state is repeated up to the depth: for models of plain attention.
// The peer is timed with flash attention on and off, and the better median counts. What its JavaScript costs per token,
// measured on a model that computes next to nothing (peer.mjs), is printed and taken off its time.
import { spawnSync } from 'node:child_process';
import { cpus, loadavg } from 'node:os';
import { basename } from 'node:path';
import { parseArgs } from 'node:util';
import { closeCase, openCase, openPeer, timeCase, timeOverhead } from './peer.mjs';

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
        flash: { type: 'string', default: 'off,on' },
        side: { type: 'string', default: 'both' },
        read: { type: 'string' },
        commit: { type: 'string', default: 'unknown' },
        json: { type: 'boolean', default: false },
    },
});
if (flags.model === undefined || !['both', 'peer', 'firn'].includes(flags.side)) {
    console.error('-m MODEL.gguf is required; --side is both, peer or firn');
    process.exit(2);
}
if (flags.read !== undefined && !(Number(flags.read) >= 1)) {
    console.error('--read is a number of tokens');
    process.exit(2);
}
const list = (text) => text.split(',');
const sorted = (xs) => [...xs].sort((a, b) => a - b);
const median = (xs) => (sorted(xs)[(xs.length - 1) >> 1] + sorted(xs)[xs.length >> 1]) / 2;
const round = (x) => Number(x.toPrecision(5));
const say = (line) => (flags.json ? console.error(line) : console.log(line));
const WHATS = ['prefill', 'decode'];

function timeFirn(c) {
    const args = ['bench', '-m', flags.model, '--prompt', c.prompt, '--gen', c.gen, '--depth', c.depth, '--made-up',
        '--batch', c.rows, '--threads', c.threads, '--kv', c.kv, '--runs', 1, '--json'].map(String);
    const made = spawnSync(flags.firn, args, { encoding: 'utf8', maxBuffer: 1 << 24 });
    if (made.status !== 0) throw new Error(`firn ${args.join(' ')}: ${made.stderr}`);
    return JSON.parse(made.stdout);
}

// tokens/s of each run, of the peer for each setting of flash attention and of Firn; and Firn's last report
async function runCase(peer, c, overhead, flashes) {
    const peers = new Map(flashes.map((flash) => [flash, { prefill: [], decode: [] }]));
    const ours = { prefill: [], decode: [], report: undefined };
    const opened = [];
    try {
        for (const flash of peer === undefined ? [] : flashes) {
            const progress = (n, rate) => console.error(`peer, flash ${flash ? 'on' : 'off'}: at ${n} of ${c.read} tokens, ${rate.toPrecision(3)} tokens/s`);
            opened.push(await openCase(peer, { ...c, flash }, progress));
        }
        for (let run = 0; run < c.runs; run++) {
            for (const one of opened) {
                const t = await timeCase(one, 100 * run);
                peers.get(one.c.flash).prefill.push(c.prompt / t.prefill);
                peers.get(one.c.flash).decode.push((c.rows * c.gen) / Math.max(t.decode - overhead * c.rows * c.gen, 1e-9));
            }
            if (flags.side !== 'peer') {
                ours.report = timeFirn(c);
                ours.prefill.push(ours.report.prefill_tokens_per_second.median);
                ours.decode.push(ours.report.decode[0].tokens_per_second.median);
            }
        }
    } finally {
        for (const one of opened) await closeCase(one);
    }
    return { peers, ours };
}

const summary = (xs) => (xs.length === 0 ? null :
    { median: round(median(xs)), min: round(sorted(xs)[0]), max: round(sorted(xs).at(-1)), runs: xs.length });
const cell = (s) => (s === null ? '-' : `${s.median.toPrecision(4)} (${s.min.toPrecision(3)} .. ${s.max.toPrecision(3)})`).padEnd(30);

function print(c, what, { peers, ours }, release) {
    const settings = [...peers].filter(([, t]) => t[what].length > 0).sort((a, b) => median(b[1][what]) - median(a[1][what]));
    const [flash, best] = settings[0] ?? [null, { [what]: [] }];
    const theirs = summary(best[what]);
    const firn = summary(ours[what]);
    const ratio = theirs !== null && firn !== null ? round(firn.median / theirs.median) : null;
    say(`${c.kv.padEnd(5)} ${String(c.depth).padStart(5)} ${String(c.rows).padStart(5)}  ${what.padEnd(8)} ${cell(theirs)}  ` +
        `${cell(firn)}  ${(ratio?.toFixed(2) ?? '-').padStart(6)}     ${{ true: 'on', false: 'off' }[flash] ?? '-'}`);
    if (!flags.json) return;
    const r = ours.report;
    console.log(JSON.stringify({
        date: new Date().toISOString().slice(0, 16), commit: flags.commit, cpu: cpus()[0].model, kernel: r?.kernel ?? null,
        threads: c.threads, load: Number(loadavg()[0].toFixed(2)), model: basename(flags.model), kv: c.kv, depth: c.depth,
        rows: c.rows, what, tokens: what === 'prefill' ? c.prompt : c.gen, unit: 'tokens/s', firn,
        limit_share: (what === 'prefill' ? r?.prefill_multiply_share : r?.decode[0].stream_share) ?? null,
        peer: theirs && { name: `llama.cpp ${release}`, flash, ...theirs }, ratio,
        command,
    }));
}

// Without what differs from machine to machine and changes nothing, to be run again.
const command = ['compare.mjs', ...Object.entries(flags).flatMap(([name, value]) =>
    (['firn', 'tiny', 'commit', 'json'].includes(name) ? [] : [`--${name}`, name === 'model' ? basename(value) : value]))].join(' ');

const peer = flags.side === 'firn' ? undefined : await openPeer(flags.model);
let overhead = 0;
if (peer !== undefined) {
    overhead = await timeOverhead(flags.tiny);
    say(`JavaScript and sampling of the peer: ${(overhead * 1e6).toFixed(0)} microseconds per token, taken off its decode`);
}
say('kv    depth  rows  what     peer tok/s (spread)             firn tok/s (spread)             firn/peer  flash');
for (const kv of list(flags.kv)) {
    for (const depth of list(flags.depth).map(Number)) {
        for (const rows of list(flags.rows).map(Number)) {
            const c = { kv, depth, rows, threads: Number(flags.threads), prompt: Number(flags.prompt), gen: Number(flags.gen),
                runs: Number(flags.runs), read: Math.min(depth, Number(flags.read ?? depth)) };
            // Quantised values need flash attention in the peer.
            const flashes = kv === 'f16' ? list(flags.flash).map((text) => text === 'on') : [true];
            const timed = await runCase(peer, c, overhead, flashes);
            for (const what of WHATS) print(c, what, timed, peer?.release);
        }
    }
}
process.exit(0);
