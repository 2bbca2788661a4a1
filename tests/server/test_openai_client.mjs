// The openai package from npm, unmodified, against the running server: what its users call and catch.
// The package is installed once into $FIRN_OUT/npm-openai.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { finish, out, metrics, serve, test, until, words } from './harness.mjs';

const version = '6.30.1';
const dir = join(out, 'npm-openai');
if (!existsSync(join(dir, `installed-${version}`))) {
    mkdirSync(dir, { recursive: true });
    writeFileSync(join(dir, 'package.json'), JSON.stringify({ private: true, dependencies: { openai: version } }));
    const flags = ['--no-audit', '--no-fund', '--no-package-lock', '--ignore-scripts', '--silent'];
    try {
        execFileSync('npm', ['install', ...flags], { cwd: dir, stdio: ['ignore', 'inherit', 'inherit'] });
    } catch (error) {
        // Without the registry there is nothing to test; the count of skipped tests says so.
        console.log(`ok - the openai package against the server # SKIP npm: ${error.message.split('\n')[0]}`);
        process.exit(0);
    }
    writeFileSync(join(dir, `installed-${version}`), '');
}
const require = createRequire(join(dir, 'package.json'));
const { default: OpenAI } = await import(pathToFileURL(require.resolve('openai')));

const server = await serve(['--no-disk', '--api-key', 'key', '--max-batch', '1', '--queue', '1']);
const client = new OpenAI({ apiKey: 'key', baseURL: `${server.url}/v1`, maxRetries: 0 });
const headers = { Authorization: 'Bearer key' };
const model = (await client.models.list()).data[0].id;
const prompt = 'My dear sister,';
const messages = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'Hello' }];

await test('models.list and models.retrieve', async () => {
    assert.equal((await client.models.retrieve(model)).id, model);
    const names = [];
    for await (const one of client.models.list()) {
        names.push(one.id);
    }
    assert.deepEqual(names, [model]);
});

await test('completions.create', async () => {
    const answer = await client.completions.create({ model, prompt, max_tokens: 6, temperature: 0, logprobs: 2 });
    assert.equal(answer.object, 'text_completion');
    assert.equal(answer.usage.completion_tokens, 6);
    assert.equal(answer.choices[0].logprobs.tokens.length, 6);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.match(answer._request_id, /^[0-9a-f]{16}$/);
});

await test('completions.create, streamed, gives the same text', async () => {
    const whole = await client.completions.create({ model, prompt, max_tokens: 6, temperature: 0 });
    const stream = await client.completions.create({ model, prompt, max_tokens: 6, temperature: 0, stream: true,
        stream_options: { include_usage: true } });
    let text = '';
    let usage = null;
    for await (const part of stream) {
        text += part.choices[0]?.text ?? '';
        usage = part.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].text);
    assert.deepEqual(usage.completion_tokens, 6);
});

await test('chat.completions.create with log-probabilities', async () => {
    const answer = await client.chat.completions.create({
        model, messages, max_completion_tokens: 5, temperature: 0, logprobs: true, top_logprobs: 3, seed: 1,
        stop: ['\n\n'], user: 'u', n: 1,
    });
    assert.equal(answer.choices[0].message.role, 'assistant');
    const { content } = answer.choices[0].logprobs;
    assert.equal(content[0].top_logprobs.length, 3);
    assert.equal(content[0].logprob, content[0].top_logprobs[0].logprob);
});

await test('chat.completions.create, streamed', async () => {
    const ask = { model, messages, max_tokens: 5, temperature: 0 };
    const whole = await client.chat.completions.create(ask);
    const stream = await client.chat.completions.create(
        { ...ask, stream: true, stream_options: { include_usage: true } });
    let text = '';
    let last = null;
    for await (const part of stream) {
        text += part.choices[0]?.delta?.content ?? '';
        last = part;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(last.usage.total_tokens, whole.usage.total_tokens);
    assert.equal(typeof last.firn.reason, 'string');
});

await test('the stream helper assembles the final message', async () => {
    const runner = client.chat.completions.stream({ model, messages, max_tokens: 5, temperature: 0 });
    const final = await runner.finalChatCompletion();
    const whole = await client.chat.completions.create({ model, messages, max_tokens: 5, temperature: 0 });
    assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

await test('usage shows cached tokens', async () => {
    const ask = { model, prompt: words(1, 100), max_tokens: 1, temperature: 0 };
    const first = await client.completions.create(ask);
    assert.equal(first.usage.prompt_tokens_details.cached_tokens, 0);
    const second = await client.completions.create(ask);
    assert.equal(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens);
    assert.equal(second.firn.ram, first.usage.prompt_tokens);
});

await test('errors become the classes that callers catch', async () => {
    const wrong = new OpenAI({ apiKey: 'no', baseURL: `${server.url}/v1`, maxRetries: 0 });
    await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
    const is = (kind, members) => (error) => {
        assert.ok(error instanceof kind, String(error));
        assert.deepEqual({ code: error.code, param: error.param }, members);
        return true;
    };
    await assert.rejects(client.models.retrieve('other'),
        is(OpenAI.NotFoundError, { code: 'model_not_found', param: 'model' }));
    await assert.rejects(client.completions.create({ model, prompt, temperature: -1 }),
        is(OpenAI.BadRequestError, { code: 'out_of_range', param: 'temperature' }));
    await assert.rejects(client.chat.completions.create({ model, messages, n: 3 }),
        is(OpenAI.BadRequestError, { code: 'unsupported', param: 'n' }));
    await assert.rejects(client.completions.create({ model, prompt: Array(9000).fill(5) }),
        is(OpenAI.BadRequestError, { code: 'context_length_exceeded', param: 'prompt' }));
});

await test('a full queue is a RateLimitError, which the client waits out when it may retry', async () => {
    const controller = new AbortController();
    const { signal } = controller;
    const begin = (max_tokens) => client.completions.create({ model, prompt, max_tokens }, { signal }).catch((e) => e);
    const running = begin(6000);
    await until(async () => (await metrics(server, headers)).firn_requests_running === 1, 'the first to run');
    const waiting = begin(1);
    await until(async () => (await metrics(server, headers)).firn_requests_waiting === 1, 'the second to wait');
    await assert.rejects(client.completions.create({ model, prompt, max_tokens: 1 }), OpenAI.RateLimitError);
    const patient = client.completions.create({ model, prompt, max_tokens: 1 }, { maxRetries: 5 });
    controller.abort();
    assert.ok(await running instanceof OpenAI.APIUserAbortError);
    await waiting;
    assert.equal((await patient).usage.completion_tokens, 1);
});

await test('breaking out of a stream cancels it', async () => {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 6000, stream: true });
    for await (const part of stream) {
        assert.ok(part.choices);
        break;
    }
    await until(async () => (await metrics(server, headers)).firn_requests_running === 0, 'the engine to be idle');
});

await server.stop();
finish();
