// llama.cpp behind node-llama-cpp, reduced to what the comparison times. What it computes is the same work that
// `firn bench` does: a prompt at a depth, then one token after the other.
//
// A depth is read once. After each run the rows go back to it: what came behind it is erased, or, where state cannot be
// cut (recurrent and window layers), the state that was saved at the depth is loaded again. Neither is timed.
import { renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { getLlama } from 'node-llama-cpp';
import { growState } from './grow.mjs';

const READ_TOKENS = 2048; // of a depth, between two words about it

const now = () => Number(process.hrtime.bigint()) * 1e-9;

export async function openPeer(modelPath) {
    const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: 0 });
    return { llama, release: llama.llamaCppRelease.release, model: await llama.loadModel({ modelPath, gpuLayers: 0 }) };
}

// ids that differ by seed, none of the first few hundred, where special tokens are
export function fillTokens(model, seed, n) {
    let state = BigInt(seed) * 0x9e3779b97f4a7c15n + 1n;
    const nVocab = model.fileInfo?.metadata?.tokenizer?.ggml?.tokens?.length ?? 32000;
    const lowest = Math.min(300, nVocab >> 1);
    return Array.from({ length: n }, () => {
        state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
        return lowest + Number((state >> 33n) % BigInt(nVocab - lowest));
    });
}

async function openContext(peer, c) {
    const options = {
        contextSize: c.depth + c.prompt + c.gen + 64,
        batchSize: 512,
        sequences: c.rows,
        threads: { ideal: c.threads, min: c.threads },
        flashAttention: c.flash,
    };
    if (c.kv !== 'f16') {
        options.experimentalKvCacheKeyType = options.experimentalKvCacheValueType = { q8: 'Q8_0', q4: 'Q4_0' }[c.kv];
    }
    return peer.model.createContext(options);
}

async function toDepth(opened, progress) {
    const { peer, c, rows } = opened;
    if (c.depth === 0) return;
    const ids = fillTokens(peer.model, 7000, c.read);
    for (let at = 0; at < c.read; at += READ_TOKENS) {
        const piece = ids.slice(at, at + READ_TOKENS);
        const began = now();
        await rows[0].evaluateWithoutGeneratingNewTokens(piece);
        progress(at + piece.length, piece.length / (now() - began));
    }
    if (c.rows > 1 || rows[0].needsCheckpoints || c.read < c.depth) {
        opened.saved = join(tmpdir(), `firn-peer-${process.pid}-${c.flash}.state`);
        await rows[0].saveStateToFile(opened.saved);
    }
    if (c.read < c.depth) {
        const short = `${opened.saved}.short`;
        renameSync(opened.saved, short);
        try {
            growState(short, opened.saved, c.depth);
        } finally {
            rmSync(short);
        }
        await rows[0].loadStateFromFile(opened.saved, { acceptRisk: true });
    }
    for (const row of rows.slice(1)) await row.loadStateFromFile(opened.saved, { acceptRisk: true });
}

// A context whose rows are all at the case's depth. One row reads it, or its first c.read tokens, whose state is then
// repeated up to the depth (grow.mjs); the others load what it has saved: they share nothing, as rows of different users
// would. progress(tokens read, tokens/s of the last piece) is called on the way, which with quantised state can take half
// an hour. Close it with closeCase, whatever happens.
export async function openCase(peer, c, progress = () => {}) {
    const context = await openContext(peer, c);
    // No checkpoints of the peer's own: writing them would be timed.
    const rows = Array.from({ length: c.rows }, () => context.getSequence({ checkpoints: { max: 0 } }));
    const opened = { peer, c, context, rows, saved: undefined };
    try {
        await toDepth(opened, progress);
    } catch (error) {
        await closeCase(opened);
        throw error;
    }
    return opened;
}

export async function closeCase(opened) {
    await opened.context.dispose();
    if (opened.saved !== undefined) rmSync(opened.saved, { force: true });
}

async function backToDepth({ c, rows, saved }) {
    for (const row of rows) {
        if (c.depth === 0) {
            await row.clearHistory();
        } else if (row.needsCheckpoints) {
            await row.clearHistory();
            await row.loadStateFromFile(saved, { acceptRisk: true });
        } else {
            await row.eraseContextTokenRanges([{ start: c.depth, end: row.nextTokenIndex }]);
        }
        if (row.nextTokenIndex !== c.depth) throw new Error(`the peer is at ${row.nextTokenIndex} instead of ${c.depth} tokens`);
    }
}

const greedy = { temperature: 0, yieldEogToken: true };

async function decode(sequence, first, n) {
    let made = 0;
    for await (const token of sequence.evaluate([first], greedy)) {
        made += 1;
        if (made === n) return token;
    }
    throw new Error(`the peer stopped after ${made} of ${n} tokens`);
}

// Seconds of the prompt's prefill at the depth, and of gen steps of all rows together.
export async function timeCase(opened, seed) {
    const { peer, c, rows } = opened;
    let prefill = 0;
    for (const [r, row] of rows.entries()) {
        const ids = fillTokens(peer.model, seed + r, c.prompt);
        const began = now();
        await row.evaluateWithoutGeneratingNewTokens(ids);
        prefill += now() - began;
    }
    const began = now();
    await Promise.all(rows.map((row, r) => decode(row, 400 + r, c.gen)));
    const seconds = { prefill: prefill / c.rows, decode: now() - began };
    await backToDepth(opened);
    return seconds;
}

// What a token costs beside the model: decode of a model that computes next to nothing. On one thread, so that nothing of
// the peer's waits for a second worker on a busy machine, and the least of many short runs: whatever else wants the
// processor can only add to it. (With two threads on two busy processors single runs gave 3.5 to 840 ms a token where one
// thread's least was 2.1.) What the tiny model computes is in it, in the peer's favour.
export async function timeOverhead(tinyPath) {
    const peer = await openPeer(tinyPath);
    const c = { depth: 0, prompt: 16, gen: 24, rows: 1, threads: 1, flash: false, kv: 'f16' };
    const opened = await openCase(peer, c);
    const seconds = [];
    for (let run = 0; run < 15; run++) seconds.push((await timeCase(opened, run)).decode / c.gen);
    await closeCase(opened);
    await peer.model.dispose();
    return Math.min(...seconds);
}
