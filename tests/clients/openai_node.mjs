// Drives a server with OpenAI's Node client and prints what it saw as one JSON object; test_openai_node.py checks it.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const seen = {};

const model = (await client.models.list()).data[0].id;
seen.model = (await client.models.retrieve(model)).id === model;

const question = { model, messages: [{ role: "user", content: "What is the capital of France?" }], temperature: 0 };
const prompt = { model, prompt: "The capital of France is", max_tokens: 8, temperature: 0 };

const answer = await client.chat.completions.create(question);
seen.chat = { text: answer.choices[0].message.content, usage: answer.usage, id: answer._request_id };

seen.chatStream = { text: "", finishReasons: [], usage: null };
const options = { include_usage: true };
for await (const chunk of await client.chat.completions.create({ ...question, stream: true, stream_options: options })) {
  for (const choice of chunk.choices) {
    seen.chatStream.text += choice.delta.content ?? "";
    if (choice.finish_reason) seen.chatStream.finishReasons.push(choice.finish_reason);
  }
  seen.chatStream.usage = chunk.usage;
}

const runner = client.chat.completions.stream(question);
seen.chatHelper = await runner.finalContent();

seen.completion = (await client.completions.create(prompt)).choices[0].text;
seen.completionStream = "";
for await (const chunk of await client.completions.create({ ...prompt, stream: true })) {
  seen.completionStream += chunk.choices[0].text;
}

const input = { model, input: question.messages, temperature: 0 };
seen.response = (await client.responses.create(input)).output_text;
seen.responseHelper = (await client.responses.stream(input).finalResponse()).output_text;

try {
  await client.chat.completions.create({ ...question, model: "gpt-nowhere" });
} catch (error) {
  const { status, code, param, type } = error;
  seen.error = { isNotFound: error instanceof OpenAI.NotFoundError, status, code, param, type };
}

const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 5 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const weather = { name: "get_weather", description: "The weather of the next days.", parameters };
const named = { type: "function", function: { name: weather.name } };
const asking = { ...question, messages: [{ role: "user", content: "What is the weather in Rome?" }], max_tokens: 100 };
const tools = [{ type: "function", function: weather }];
const called = await client.chat.completions.create({ ...asking, tools, tool_choice: named });
seen.call = called.choices[0].message.tool_calls[0].function;
const accumulated = await client.chat.completions.stream({ ...asking, tools, tool_choice: "required" }).finalMessage();
seen.streamedCalls = accumulated.tool_calls.map(({ function: { name, arguments: text } }) => ({ name, arguments: JSON.parse(text) }));

seen.ran = [];
const getWeather = async (given) => {
  seen.ran.push(given);
  return "sunny";
};
// With a named tool the runner ends once that tool has run.
const running = client.chat.completions.runTools({
  ...asking,
  stream: true,
  tools: [{ type: "function", function: { ...weather, function: getWeather, parse: JSON.parse } }],
  tool_choice: named,
});
seen.runnerResult = await running.finalFunctionToolCallResult();

const story = { ...question, messages: [{ role: "user", content: "Tell me a very long story." }], max_tokens: 2000 };
const stream = await client.chat.completions.create({ ...story, stream: true });
seen.chunksBeforeAbort = 0;
for await (const chunk of stream) {
  seen.chunksBeforeAbort += 1;
  if (seen.chunksBeforeAbort === 3) stream.controller.abort();
}

console.log(JSON.stringify(seen));
