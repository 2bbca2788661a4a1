// llama.cpp behind node-llama-cpp, reduced to what the comparison times. One context at a time; what it computes is the
// same work that `firn bench` does: a prompt at a depth, then one token after the other.
import { getLlama } from 'node-llama-cpp';

const now = () => Number(process.hrtime.bigint()) * 1e-9;

export async function openPeer(modelPath) {
    const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: 0 });
    return { llama, model: await llama.loadModel({ modelPath, gpuLayers: 0 }) };
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
export async function timeCase(peer, c, seed) {
    const context = await openContext(peer, c);
    try {
        const rows = Array.from({ length: c.rows }, () => context.getSequence());
        let prefill = 0;
        for (const [r, row] of rows.entries()) {
            const ids = fillTokens(peer.model, seed + r, c.depth + c.prompt);
            if (c.depth > 0) await row.evaluateWithoutGeneratingNewTokens(ids.slice(0, c.depth));
            const began = now();
            await row.evaluateWithoutGeneratingNewTokens(ids.slice(c.depth));
            prefill += now() - began;
        }
        const began = now();
        await Promise.all(rows.map((row, r) => decode(row, 400 + r, c.gen)));
        return { prefill: prefill / c.rows, decode: now() - began };
    } finally {
        await context.dispose();
    }
}

// What a step costs beside the model: decode of a model that computes next to nothing.
export async function timeOverhead(tinyPath, threads) {
    const peer = await openPeer(tinyPath);
    const c = { depth: 0, prompt: 16, gen: 64, rows: 1, threads, flash: false, kv: 'f16' };
    const seconds = [];
    for (let run = 0; run < 5; run++) seconds.push((await timeCase(peer, c, run)).decode / c.gen);
    await peer.model.dispose();
    return seconds.sort((a, b) => a - b)[2];
}
