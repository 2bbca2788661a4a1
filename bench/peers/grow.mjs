// A saved state of the peer (a sequence's file, `llama_state_seq_save_file`, version 3) made longer by repeating what it
// holds: as `firn bench --made-up` does, it spares the comparison hours of reading a depth whose numbers change no time.
// Only states of plain attention can be repeated; whatever else a file holds is an error, as is a byte left over.
//
//     u32 magic, u32 version, u32 tokens, i32 token[tokens]
//     u32 streams, of which all but the sequence's are u32 0
//     u32 cells, cells x { i32 position, u32 sequences = 1, i32 sequence }
//     u32 transposed, u32 layers
//     layers x { i32 type, u64 bytes of a row, row[cells] }                                keys
//     layers x { i32 type, u64 bytes of a row, row[cells] }                                values, not transposed
//     layers x { i32 type, u32 bytes of an element, u32 width, width x element[cells] }    values, transposed
import { closeSync, openSync, readFileSync, writeSync } from 'node:fs';

const MAGIC = 0x67677371;
const VERSION = 3;

const u32 = (value) => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(value);
    return bytes;
};

// Writes to `to` the state of n tokens that repeats the one at `from`.
export function growState(from, to, n) {
    const held = readFileSync(from);
    const out = openSync(to, 'w');
    let at = 0;
    let nTokens = 0;
    const write = (bytes) => { for (let done = 0; done < bytes.length;) done += writeSync(out, bytes, done); };
    const take = (size) => {
        if (at + size > held.length) throw new Error(`${from} ends within a field at byte ${at}`);
        return held.subarray(at, at += size);
    };
    const number = () => take(4).readUInt32LE();
    const expect = (what, value, wanted) => {
        if (value !== wanted) throw new Error(`${from}: ${what} is ${value} instead of ${wanted}: it cannot be made longer`);
    };
    const copy = (size) => {
        const bytes = take(size);
        write(bytes);
        return bytes;
    };
    const repeat = (size) => { // of one cell
        const bytes = take(nTokens * size);
        for (let left = n * size; left > 0; left -= bytes.length) write(left < bytes.length ? bytes.subarray(0, left) : bytes);
    };
    const growRows = () => repeat(Number(copy(12).readBigUInt64LE(4)));
    const growColumns = () => {
        const head = copy(12);
        for (let d = head.readUInt32LE(8); d > 0; d--) repeat(head.readUInt32LE(4));
    };
    const growStream = () => {
        for (let token = 0; token < nTokens; token++) {
            expect('position', number(), token);
            expect('number of sequences of a cell', number(), 1);
            take(4);
        }
        for (let token = 0; token < n; token++) write(Buffer.concat([u32(token), u32(1), u32(0)]));
        const transposed = copy(4).readUInt32LE() === 1;
        const nLayers = copy(4).readUInt32LE();
        for (let layer = 0; layer < nLayers; layer++) growRows();
        for (let layer = 0; layer < nLayers; layer++) transposed ? growColumns() : growRows();
    };

    try {
        expect('magic', number(), MAGIC);
        expect('version', number(), VERSION);
        nTokens = number();
        write(Buffer.concat([u32(MAGIC), u32(VERSION), u32(n)]));
        repeat(4);
        for (let stream = copy(4).readUInt32LE(); stream > 0; stream--) {
            const nCells = number();
            if (nCells === 0) {
                write(u32(0));
                continue;
            }
            expect('number of cells', nCells, nTokens);
            write(u32(n));
            growStream();
        }
        expect('number of bytes', held.length, at);
    } finally {
        closeSync(out);
    }
}
