// The examples of docs/HTTP_API.md, as they stand there, against a running server; and the comments of a silent stream.
import { execFile } from 'node:child_process';
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { finish, post, root, serve, skip, temporaryDir, test } from './harness.mjs';

const run = promisify(execFile);
const page = readFileSync(join(root, 'docs/HTTP_API.md'), 'utf8');
const examples = [...page.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map((match) => match[1].trim());
const server = await serve(['--cache-dir', temporaryDir(), '--keep-alive-seconds', '0.1', '--chunk', '8']);

let hasCurl = true;
try {
    await run('curl', ['--version']);
} catch {
    hasCurl = false;
}
for (const example of examples) {
    const name = `the example runs: ${example.split('\n')[0]}`;
    if (!hasCurl) {
        skip(name, 'no curl');
        continue;
    }
    await test(name, async () => {
        const { stdout } = await run('sh', ['-c', example], { env: { ...process.env, URL: server.url } });
        assert.notEqual(stdout.trim(), '');
        assert.doesNotMatch(stdout, /"code": ?"(not_found|invalid_|method_)/);
        if (example.includes('"stream": true')) {
            assert.match(stdout, /^data: \[DONE\]$/m);
            assert.match(stdout, /"firn": ?\{/);
        } else if (!example.includes('/metrics')) {
            JSON.parse(stdout);
        }
    });
}
await test('the page has examples', async () => assert.ok(examples.length >= 6));

await test('a stream sends comments while its prompt is read, and they disturb nobody', async () => {
    // Chunks of eight on one thread make the reading last several tenths of a second.
    const prompt = Array.from({ length: 1900 }, (_, i) => 300 + (i * 7) % 1500);
    const answer = await post(server, '/v1/completions', { prompt, max_tokens: 3, temperature: 0, stream: true });
    assert.equal(answer.status, 200);
    assert.match(answer.text, /^: reading the prompt$/m);
    const events = answer.text.split('\n\n').filter((event) => event !== '');
    for (const event of events.filter((e) => !e.startsWith(':'))) {
        assert.match(event, /^data: (\{.*\}|\[DONE\])$/s);
    }
    assert.equal(events.at(-1), 'data: [DONE]');
    const whole = await post(server, '/v1/completions', { prompt, max_tokens: 3, temperature: 0 });
    const text = events.filter((e) => e.startsWith('data: {')).map((e) => JSON.parse(e.slice(6)).choices[0]?.text ?? '');
    assert.equal(text.join(''), whole.json.choices[0].text);
});

await server.stop();
finish();
