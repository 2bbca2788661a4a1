// A serving process is killed with SIGKILL under load, a hundred times on one cache directory. After each: the next one
// starts, in a time that does not grow; answers are what they were before all kills, to the last log-probability; what
// was durable is served from disk; the index verifies and no byte is counted that is not there. FIRN_KILLS: how many.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { complete, finish, firn, metrics, serve, sleep, temporaryDir, test, until, words } from './harness.mjs';

const kills = Number(process.env.FIRN_KILLS ?? 100);
const n_prompts = 6;

// What is tested is the process's death, not the device's: memory is as good, and quicker.
const inMemory = existsSync('/dev/shm') ? mkdtempSync('/dev/shm/firn-server-kill-') : temporaryDir();
process.on('exit', () => rmSync(inMemory, { recursive: true, force: true }));

// splitmix-like, so that a run can be repeated.
let state = Number(process.env.FIRN_TEST_SEED ?? 5);
function below(n) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) % n;
}

// Long enough for several blocks; some begin like others.
const prompts = Array.from({ length: n_prompts }, (_, i) => words(10 + (i >> 1), 90) + words(50 + i, 30 + 20 * i));
const ask = (i) => ({ prompt: prompts[i], max_tokens: 3, logprobs: 2 });
const sizeOf = (dir) => readdirSync(dir, { recursive: true })
    .map((name) => statSync(join(dir, name)))
    .reduce((sum, stat) => sum + (stat.isDirectory() ? 0 : stat.blocks * 512), 0);
const median = (list) => list.slice().sort((a, b) => a - b)[list.length >> 1];

await test(`${kills} kills of a serving process lose nothing durable and change no answer`, async () => {
    const cache = join(inMemory, 'cache');
    const flags = ['--cache-dir', cache, '--ram-budget', '64M'];
    const clean = await serve(['--no-disk']);
    const expected = [];
    for (let i = 0; i < n_prompts; i++) {
        expected.push((await complete(clean, ask(i))).json.choices);
    }
    await clean.stop('SIGKILL');

    const starts = [];
    const durable = new Set(); // prompts that a later commit has followed
    let fromDisk = 0, answered = 0;
    for (let kill = 0; kill < kills; kill++) {
        const begun = performance.now();
        const server = await serve(flags);
        starts.push(performance.now() - begun);
        // What one prompt gives now: before anything new is computed, so that it can only come from the disk.
        const i = below(n_prompts);
        const { json } = await complete(server, ask(i));
        assert.deepEqual(json.choices, expected[i], `kill ${kill}, prompt ${i}`);
        assert.ok(!durable.has(i) || json.firn.disk > 0, `kill ${kill}: prompt ${i} was durable: ${json.firn.reason}`);
        fromDisk += json.firn.disk > 0;
        if (kill % 10 === 0) {
            // The tier's own count is that of the directory, once nothing is being written.
            const agree = async () => (await metrics(server)).firn_disk_physical_bytes === sizeOf(cache);
            await until(agree, 'the books to agree with the disk', 10000);
        }
        // Load: two requests at once, one of them with a tail of its own; killed somewhere in it.
        const j = below(n_prompts);
        let wrong = null;
        const same = complete(server, ask(j)).then((answer) => {
            answered += answer.status === 200;
            try {
                assert.deepEqual(answer.json.choices, expected[j]);
            } catch (error) {
                wrong = error;
            }
        }, () => undefined); // killed meanwhile
        const other = complete(server, { prompt: `${prompts[i]} ${kill}` }).catch(() => undefined);
        await sleep(below(40));
        server.kill('SIGKILL');
        await Promise.all([same, other]);
        assert.equal(wrong, null, `kill ${kill}, prompt ${j} under load`);
        await server.exited;
        assert.equal(server.signal, 'SIGKILL'); // not ended by itself before
        // A prompt that came from disk once had been committed before, and another start has synced the index since.
        if (json.firn.disk > 0) {
            durable.add(i);
        }
    }
    console.log(`# ${fromDisk} of ${kills} first answers came from disk, ${answered} answers under load`);
    assert.ok(fromDisk > kills / 2);
    const early = median(starts.slice(0, kills >> 2)), late = median(starts.slice(-(kills >> 2)));
    console.log(`# start: ${early.toFixed(0)} ms at first, ${late.toFixed(0)} ms at last`);
    assert.ok(late < 2 * early + 100, `${late} ms after ${early} ms`);
    execFileSync(firn, ['cache', 'verify', '--cache-dir', cache]); // throws when a record is bad
});

finish();
