// What the server's node tests share: starting `firn serve` on a free port, a TAP-like reporter, requests.
// Whatever is started here is stopped here, by its process id.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
export const root = resolve(here, '../..');
export const out = resolve(process.env.FIRN_OUT ?? join(root, 'build'));
export const firn = join(out, 'firn');
export const model = join(root, 'models/firn-tiny-q8_0.gguf');

const dirs = [];
const children = new Set();
let failures = 0;

process.on('exit', () => {
    for (const child of children) {
        child.kill('SIGKILL');
    }
    for (const dir of dirs) {
        rmSync(dir, { recursive: true, force: true });
    }
});

export function temporaryDir() {
    const dir = mkdtempSync(join(tmpdir(), 'firn-server-'));
    dirs.push(dir);
    return dir;
}

export async function test(name, body) {
    try {
        await body();
        console.log(`ok - ${name}`);
    } catch (error) {
        failures++;
        console.log(`not ok - ${name}`);
        for (const line of String(error.stack ?? error).split('\n').slice(0, 12)) {
            console.log(`#   ${line}`);
        }
    }
}

export function skip(name, why) {
    console.log(`ok - ${name} # SKIP ${why}`);
}

export function finish() {
    process.exit(failures === 0 ? 0 : 1);
}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Waits until probe() is truthy and returns it.
export async function until(probe, what, ms = 20000) {
    const deadline = Date.now() + ms;
    for (;;) {
        const value = await probe();
        if (value) {
            return value;
        }
        if (Date.now() > deadline) {
            throw new Error(`waited ${ms} ms for ${what}`);
        }
        await sleep(20);
    }
}

// Starts `firn serve` with these flags and does not wait for it.
export function start(flags, { env = {}, port = 0 } = {}) {
    // One thread: the answers are the same to the bit, and several servers do not fight for the processors.
    const threads = flags.includes('--threads') ? [] : ['--threads', '1'];
    // A model as small as these computes sooner than a disk answers: restored all the same, or there is nothing to test.
    const child = spawn(firn, ['serve', '--port', String(port), '--restore-always', ...threads, ...flags], {
        env: { ...process.env, FIRN_MODEL: model, FIRN_API_KEY: '', ...env },
        stdio: ['ignore', 'pipe', 'pipe'],
    });
    children.add(child);
    const server = { pid: child.pid, stdout: '', stderr: '', url: null, code: null, signal: null };
    child.stdout.on('data', (data) => { server.stdout += data; });
    child.stderr.on('data', (data) => { server.stderr += data; });
    server.exited = new Promise((done) => {
        child.on('close', (code, signal) => {
            children.delete(child);
            server.code = code;
            server.signal = signal;
            done(code);
        });
    });
    server.kill = (signal = 'SIGTERM') => child.kill(signal);
    server.stop = async (signal = 'SIGTERM') => {
        child.kill(signal);
        return server.exited;
    };
    return server;
}

// The same, resolved once it listens; rejects with its output when it ends before.
export async function serve(flags, options) {
    const server = start(flags, options);
    const ready = () => server.stdout.includes('Ctrl-C') || server.code !== null || server.signal !== null;
    await until(ready, 'the server', 60000);
    const line = /^listening on (http:\/\/\S+)$/m.exec(server.stdout);
    if (line === null) {
        throw Object.assign(new Error(`firn serve ended: ${server.stdout}${server.stderr}`), { server });
    }
    server.url = line[1];
    return server;
}

// The same for a start that must fail: resolves with the ended server.
export async function serveFails(flags, options) {
    try {
        const server = await serve(flags, options);
        await server.stop('SIGKILL');
    } catch (error) {
        if (error.server) {
            return error.server;
        }
        throw error;
    }
    throw new Error('firn serve started');
}

export async function post(server, path, body, { headers = {}, signal } = {}) {
    const response = await fetch(server.url + path, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
        signal,
    });
    const text = await response.text();
    let json = null;
    try {
        json = JSON.parse(text);
    } catch { /* a stream */ }
    return { status: response.status, headers: response.headers, text, json };
}

export const complete = (server, body, options) =>
    post(server, '/v1/completions', { temperature: 0, max_tokens: 4, ...body }, options);

// The JSON of each event of a stream; the last one, [DONE], as a string.
export function events(text) {
    return text.split('\n\n').filter((event) => event !== '').map((event) => {
        if (!event.startsWith('data: ')) {
            throw new Error(`not an event: ${event}`);
        }
        const data = event.slice(6);
        return data === '[DONE]' ? data : JSON.parse(data);
    });
}

// Metrics as { 'name{labels}': number }.
export async function metrics(server, headers = {}) {
    const text = await (await fetch(`${server.url}/metrics`, { headers })).text();
    const values = {};
    for (const line of text.split('\n')) {
        const match = /^([^# ].*) (\S+)$/.exec(line);
        if (match) {
            values[match[1]] = Number(match[2]);
        }
    }
    return values;
}

// The head of a request with a JSON body of n bytes, without the empty line at its end.
export const head = (path, n, version = '1.1') =>
    `POST ${path} HTTP/${version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${n}\r\n`;

// Sends bytes as they are and resolves with everything that comes back until the server closes or `ms` are over.
export function raw(server, bytes, ms = 3000) {
    const { hostname, port } = new URL(server.url);
    return new Promise((done, fail) => {
        let text = '';
        const socket = connect(Number(port), hostname, () => socket.write(bytes));
        const timer = setTimeout(() => socket.destroy(), ms);
        socket.on('data', (data) => { text += data; });
        socket.on('error', (error) => (text === '' ? fail(error) : undefined));
        socket.on('close', () => {
            clearTimeout(timer);
            done(text);
        });
    });
}

// n different words: long prompts of a known beginning.
export function words(seed, n) {
    const list = ['the', 'whale', 'and', 'the sea', 'my', 'sister', 'was', 'very', 'good', 'king', 'of', 'Israel'];
    let state = seed;
    return Array.from({ length: n }, () => {
        state = (Math.imul(state, 1103515245) + 12345) >>> 0;
        return list[(state >>> 16) % list.length];
    }).join(' ');
}
