// Responses and events of the model server and the platform, by the names that `operations.py` uses.
//
// `answers.py` makes the schemas of the OpenAPI document from them. It reads this part of TypeScript: `interface`
// (with `extends`) and `type`, unions, literals, arrays and `Record<string, T>`; `integer` is a whole number.

// Errors.
/** An error of OpenAI's API and of those that follow it. */
interface OpenAIError { error: OpenAIErrorFields }
/** The text of an error, its kind and the parameter that it is about. */
interface OpenAIErrorFields { message: string; type: string; param?: string | null; code?: string | null }
/** An error of Anthropic's API. */
interface AnthropicError { type: "error"; error: AnthropicErrorFields }
/** The kind and the text of an error. */
interface AnthropicErrorFields { type: string; message: string }
/** An error as a text. */
interface TextError { error: string }
/** An error as a text, with its kind. */
interface TypedError { error: string; error_type: string }
/** An error of AWS. */
interface AwsError { message?: string; Message?: string }

// OpenAI. Sources: OpenAI API reference; vLLM `vllm/entrypoints/openai/protocol.py` (`stop_reason`, `reasoning`).
type FinishReason = "stop" | "length" | "tool_calls"

/** A model or an adapter. */
interface ServedModel {
  id: string; object: "model"; created: integer; owned_by: string; root?: string; parent?: string | null
  type: "model"; display_name: string; created_at: string; lifecycle: "active"
  max_model_len?: integer; has_chat_template?: boolean; tool_support?: "native" | "generic" | null
}
/** A list of models and adapters. */
interface ServedModels {
  object: "list"; data: ServedModel[]; has_more: boolean; first_id: string | null; last_id: string | null
}
/** The tokens of the prompt that the prefix cache had. */
interface CachedTokens { cached_tokens: integer }
/** The tokens of the reasoning. */
interface ReasoningTokens { reasoning_tokens: integer }
/** Numbers of tokens of a request. */
interface Usage {
  prompt_tokens: integer; completion_tokens: integer; total_tokens: integer; prompt_tokens_details: CachedTokens
  completion_tokens_details?: ReasoningTokens
}
/** A token that was likely at its place. */
interface TopLogprob { token: string; logprob: number; bytes: integer[] }
/** A token of the answer, with the most likely ones. */
interface TokenLogprob extends TopLogprob { top_logprobs: TopLogprob[] }
/** The logprobs of a message. */
interface ChatLogprobs { content: TokenLogprob[]; refusal: null }
/** The name and the arguments of a call; a part of them in a stream. */
interface ChatToolFunction { name?: string; arguments?: string }
/** A call of a tool. */
interface ChatToolCall { id: string; type: "function"; function: ChatToolFunction }
/** A part of a call; the first one has its id and its name. */
interface ChatToolCallDelta { index: integer; function: ChatToolFunction; id?: string; type?: "function" }
/** The answer to a chat. */
interface ChatMessage {
  role: "assistant"; content: string | null; refusal: null; annotations: null; audio: null; function_call: null
  reasoning: string | null; reasoning_content: string | null; tool_calls?: ChatToolCall[]
}
/** A part of the answer to a chat. */
interface ChatDelta {
  role?: "assistant"; content?: string; reasoning?: string; reasoning_content?: string; tool_calls?: ChatToolCallDelta[]
}
/** The answer to a chat, of which a request may ask for `n`. */
interface ChatChoice {
  index: integer; message: ChatMessage; logprobs: ChatLogprobs | null; finish_reason: FinishReason
  stop_reason?: string | integer
}
/** A part of the answer to a chat. */
interface ChatChunkChoice {
  index: integer; delta: ChatDelta; logprobs: ChatLogprobs | null; finish_reason: FinishReason | null
  stop_reason?: string | integer
}
/** The response of a chat completion. */
interface ChatCompletion {
  id: string; object: "chat.completion"; created: integer; model: string; system_fingerprint: string
  choices: ChatChoice[]; usage: Usage
}
/** An event of a streamed chat completion; the stream ends with `[DONE]`. */
interface ChatCompletionChunk {
  id: string; object: "chat.completion.chunk"; created: integer; model: string; system_fingerprint: string
  choices: ChatChunkChoice[]; usage?: Usage | null
}
/** The logprobs of a completion, as parallel lists. */
interface TextLogprobs {
  tokens: string[]; token_logprobs: (number | null)[]; top_logprobs: (Record<string, number> | null)[] | null
  text_offset: integer[]
}
/** A text or a part of it; a request may ask for `n` texts. */
interface TextChoice {
  index: integer; text: string; logprobs: TextLogprobs | null; finish_reason: "stop" | "length" | null
  stop_reason?: string | integer
}
/** The response of a completion, or an event of its stream, which ends with `[DONE]`. */
interface TextCompletion {
  id: string; object: "text_completion"; created: integer; model: string; system_fingerprint: string
  choices: TextChoice[]; usage?: Usage | null
}
/** The vector of an input; a string in base64 if `encoding_format` asks for it. */
interface Embedding { object: "embedding"; index: integer; embedding: number[] | string }
/** The tokens of all inputs. */
interface PromptUsage { prompt_tokens: integer; total_tokens: integer }
/** Counts and durations of an answer of llama-server. */
interface InfillTimings {
  cache_n: integer; prompt_n: integer; prompt_ms: number; prompt_per_token_ms: number; prompt_per_second: number
  predicted_n: integer; predicted_ms: number; predicted_per_token_ms: number; predicted_per_second: number
}
/** The text of a gap, or an event of its stream; the fields after `stop` only of the last one. */
interface InfilledText {
  index: integer; content: string; tokens: integer[]; id_slot: integer; stop: boolean; model?: string
  tokens_predicted?: integer; tokens_evaluated?: integer; tokens_cached?: integer; has_new_line?: boolean
  truncated?: boolean; stop_type?: "eos" | "limit" | "word"; stopping_word?: string; timings?: InfillTimings
}
/** The vectors of all inputs. */
interface Embeddings { object: "list"; data: Embedding[]; model: string; usage: PromptUsage }

// OpenAI's Responses API. Source: OpenAI API reference, "Responses" and "Streaming events".
type ItemStatus = "in_progress" | "completed" | "incomplete"
type OutputItem = MessageItem | ReasoningItem | FunctionCallItem
type ResponsesEvent = ResponseEvent | OutputItemEvent | ContentPartEvent | TextEvent | ArgumentsEvent | ErrorEvent

/** A text of a message. */
interface OutputText { type: "output_text"; text: string; annotations: unknown[]; logprobs: TokenLogprob[] }
/** A text of the reasoning. */
interface ReasoningText { type: "reasoning_text"; text: string }
/** A message of the model. */
interface MessageItem { type: "message"; id: string; status: ItemStatus; role: "assistant"; content: OutputText[] }
/** The reasoning of the model. */
interface ReasoningItem {
  type: "reasoning"; id: string; status: ItemStatus; content: ReasoningText[]; summary: unknown[]
}
/** A call of a tool. */
interface FunctionCallItem {
  type: "function_call"; id: string; status: ItemStatus; call_id: string; name: string; arguments: string
}
/** The tokens of the input that the prefix cache had. */
interface InputTokenDetails extends CachedTokens { cache_write_tokens: integer }
/** Numbers of tokens of a response. */
interface ResponseUsage {
  input_tokens: integer; input_tokens_details: InputTokenDetails; output_tokens: integer
  output_tokens_details: ReasoningTokens; total_tokens: integer
}
/** The reason of a response that failed. */
interface ResponseError { code: string; message: string }
/** The reason of a response that was cut. */
interface IncompleteDetails { reason: string }
/** A response with the fields of its request. */
interface ModelResponse {
  id: string; object: "response"; created_at: integer; status: "in_progress" | "completed" | "incomplete" | "failed"
  model: string; output: OutputItem[]; error: ResponseError | null; incomplete_details: IncompleteDetails | null
  usage: ResponseUsage | null; background: boolean; instructions: unknown; max_output_tokens: integer | null
  metadata: Record<string, string>; parallel_tool_calls: boolean; previous_response_id: string | null
  prompt_cache_key: string | null; reasoning: Record<string, unknown>; safety_identifier: string | null; store: boolean
  temperature: number | null; text: Record<string, unknown>; tool_choice: unknown; tools: unknown[]
  top_logprobs: integer; top_p: number | null; truncation: string; user: string | null
}
/** The number of tokens of the input of a response. */
interface InputTokens { object: "response.input_tokens"; input_tokens: integer }
/** An event about the whole response. */
interface ResponseEvent {
  type: "response.created" | "response.in_progress" | "response.completed" | "response.incomplete" | "response.failed"
  sequence_number: integer; response: ModelResponse
}
/** The start or the end of an item. */
interface OutputItemEvent {
  type: "response.output_item.added" | "response.output_item.done"; sequence_number: integer; output_index: integer
  item: OutputItem
}
/** The start or the end of a text. */
interface ContentPartEvent {
  type: "response.content_part.added" | "response.content_part.done"; sequence_number: integer; item_id: string
  output_index: integer; content_index: integer; part: OutputText | ReasoningText
}
/** A part of a text (`delta`), or all of it (`text`). */
interface TextEvent {
  type: "response.output_text.delta" | "response.output_text.done" | "response.reasoning_text.delta" |
    "response.reasoning_text.done"
  sequence_number: integer; item_id: string; output_index: integer; content_index: integer; delta?: string
  text?: string; logprobs?: TokenLogprob[]
}
/** A part of the arguments of a call (`delta`), or all of them (`arguments`). */
interface ArgumentsEvent {
  type: "response.function_call_arguments.delta" | "response.function_call_arguments.done"; sequence_number: integer
  item_id: string; output_index: integer; name?: string; delta?: string; arguments?: string
}
/** The end of a stream that failed before its response began. */
interface ErrorEvent {
  type: "error"; sequence_number: integer; code: string | null; message: string; param: string | null
  error: Record<string, unknown>
}
/** A stored response that was deleted. */
interface DeletedResponse { id: string; object: "response"; deleted: boolean }
/** A page of the input of a stored response. */
interface InputItems {
  object: "list"; data: Record<string, unknown>[]; first_id: string | null; last_id: string | null; has_more: boolean
}
/** A file of requests, or of the results of a batch. */
interface FileObject {
  id: string; object: "file"; bytes: integer; created_at: integer; expires_at: integer; filename: string
  purpose: "batch" | "batch_output"; status: "processed"; status_details: null
}
/** A page of files. */
interface FilePage {
  object: "list"; data: FileObject[]; first_id: string | null; last_id: string | null; has_more: boolean
}
/** What the deletion of a file answers. */
interface DeletedFile { id: string; object: "file"; deleted: boolean }
/** A batch of requests and its progress. */
interface BatchObject {
  id: string; object: "batch"; endpoint: string; model: string | null; errors: Record<string, unknown> | null
  input_file_id: string; completion_window: "24h"
  status: "validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled"
  output_file_id: string | null; error_file_id: string | null; created_at: integer; expires_at: integer
  in_progress_at: integer | null; finalizing_at: integer | null; completed_at: integer | null; failed_at: integer | null
  expired_at: integer | null; cancelling_at: integer | null; cancelled_at: integer | null
  request_counts: BatchCounts; usage: BatchUsage; metadata: Record<string, string> | null
}
/** The requests of a batch by their state. */
interface BatchCounts { total: integer; completed: integer; failed: integer }
/** The tokens of all answers of a batch. */
interface BatchUsage {
  input_tokens: integer; input_tokens_details: CachedTokens
  output_tokens: integer; output_tokens_details: ReasoningTokens; total_tokens: integer
}
/** A page of batches. */
interface BatchPage {
  object: "list"; data: BatchObject[]; first_id: string | null; last_id: string | null; has_more: boolean
}

// Anthropic's Messages API. Source: Anthropic API reference, "Messages" and "Streaming messages".
type StopReason = "end_turn" | "max_tokens" | "stop_sequence" | "tool_use"
type ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
type MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping

/** A block of text in a message. */
interface TextBlock { type: "text"; text: string }
/** The reasoning of the model. */
interface ThinkingBlock { type: "thinking"; thinking: string; signature: string }
/** A call of a tool. */
interface ToolUseBlock { type: "tool_use"; id: string; name: string; input: Record<string, unknown> }
/** Numbers of tokens; `input_tokens` are those that the prefix cache did not have. */
interface MessageUsage {
  input_tokens: integer; cache_creation_input_tokens: integer; cache_read_input_tokens: integer; output_tokens: integer
}
/** The message that answers a request. */
interface AnthropicMessage {
  id: string; type: "message"; role: "assistant"; model: string; content: ContentBlock[]; stop_reason: StopReason | null
  stop_sequence: string | null; usage: MessageUsage
}
/** The start of a message. */
interface MessageStart { type: "message_start"; message: AnthropicMessage }
/** The start of a block. */
interface BlockStart { type: "content_block_start"; index: integer; content_block: ContentBlock }
/** A part of a text. */
interface TextPart { type: "text_delta"; text: string }
/** A part of the reasoning. */
interface ThinkingPart { type: "thinking_delta"; thinking: string }
/** The signature of the reasoning. */
interface SignaturePart { type: "signature_delta"; signature: string }
/** A part of the arguments of a call. */
interface ArgumentsPart { type: "input_json_delta"; partial_json: string }
/** A part of a block. */
interface BlockDelta {
  type: "content_block_delta"; index: integer; delta: TextPart | ThinkingPart | SignaturePart | ArgumentsPart
}
/** The end of a block. */
interface BlockStop { type: "content_block_stop"; index: integer }
/** The reason why the message ended. */
interface StopDelta { stop_reason: StopReason | null; stop_sequence: string | null }
/** The reason of the end, and the numbers of tokens. */
interface MessageDelta { type: "message_delta"; delta: StopDelta; usage: MessageUsage }
/** The end of a message. */
interface MessageStop { type: "message_stop" }
/** An event that keeps the connection open. */
interface Ping { type: "ping" }
/** The number of tokens of messages. */
interface TokenCount { input_tokens: integer }
/** A batch of requests and its progress; the counts are zero until it has ended. */
interface MessageBatch {
  id: string; type: "message_batch"; processing_status: "in_progress" | "canceling" | "ended"
  request_counts: Record<string, unknown>; created_at: string; expires_at: string; ended_at: string | null
  cancel_initiated_at: string | null; archived_at: null; results_url: string | null
}
/** A page of batches. */
interface MessageBatchPage { data: MessageBatch[]; first_id: string | null; last_id: string | null; has_more: boolean }
/** What the deletion of a batch answers. */
interface DeletedMessageBatch { id: string; type: "message_batch_deleted" }

// Ollama. Source: Ollama `docs/api.md`.
/** The end of an answer; the durations are nanoseconds. */
interface Timing {
  model: string; created_at: string; done: boolean; done_reason?: "stop" | "length" | "load" | "unload"
  total_duration?: integer; load_duration?: integer; prompt_eval_count?: integer; prompt_eval_duration?: integer
  eval_count?: integer; eval_duration?: integer
}
/** A function and its arguments. */
interface OllamaFunction { index: integer; name: string; arguments: Record<string, unknown> }
/** A call of a tool. */
interface OllamaCall { id: string; function: OllamaFunction }
/** An answer, or a part of it. */
interface OllamaMessage { role: "assistant"; content: string; thinking?: string; tool_calls?: OllamaCall[] }
/** The answer to a chat, or a line of its stream. */
interface OllamaChat extends Timing { message: OllamaMessage }
/** The answer to a prompt, or a line of its stream. */
interface OllamaText extends Timing { response: string; thinking?: string }
/** The vectors of all inputs. */
interface OllamaVectors {
  model: string; embeddings: number[][]; total_duration: integer; load_duration: integer; prompt_eval_count: integer
}
/** The vector of one prompt. */
interface OllamaVector { embedding: number[] }
/** The network of a model. */
interface OllamaDetails {
  parent_model: string; format: string; family: string; families: string[]; parameter_size: string
  quantization_level: string
}
/** A model or an adapter; the last three fields only of what is loaded. */
interface OllamaModel {
  name: string; model: string; modified_at: string; size: integer; digest: string; details: OllamaDetails
  expires_at?: string; size_vram?: integer; context_length?: integer
}
/** A list of models and adapters. */
interface OllamaModels { models: OllamaModel[] }
/** The description of a model. */
interface OllamaDescription {
  license: string; modelfile: string; parameters: string; template: string; modified_at: string; details: OllamaDetails
  model_info: Record<string, unknown>; capabilities: string[]
}
/** The version of a server or API. */
interface VersionAnswer { version: string }

// TGI, TEI, vLLM's tokenizer routes, rerankers, adapters, platform. Sources: `docs/openapi.json` of
// text-generation-inference and of text-embeddings-inference; Cohere, "Rerank v2".
/** The state of a server. */
interface Health { status: string; model?: string; reason?: string }
/** A token with its logprob. */
interface TgiToken { id: integer; text: string; logprob: number; special: boolean }
/** A token of the prompt; the first one has no logprob. */
interface PrefillToken { id: integer; text: string; logprob: number | null }
/** The end of an answer and, if the request asks for details, its tokens. */
interface TgiDetails {
  finish_reason: string; generated_tokens: integer; seed: integer | null; input_length?: integer
  prefill?: PrefillToken[]; tokens?: TgiToken[]; top_tokens?: TgiToken[][]
  best_of_sequences?: Record<string, unknown>[]
}
/** A generated text, with details on request. */
interface GeneratedText { generated_text: string; details?: TgiDetails }
/** An event of a stream: a token; the last one has the whole text. */
interface TgiEvent {
  token: TgiToken; generated_text: string | null; details: TgiDetails | null; index?: integer; top_tokens?: TgiToken[]
}
/** A token and its place in the text. */
interface TextSpan { id: integer; text: string; start: integer; stop: integer }
/** The tokens of messages, and the text of the chat template. */
interface ChatTokens { tokenize_response: TextSpan[]; templated_text: string }
/** The tokens of a prompt (vLLM). */
interface Tokens { count: integer; max_model_len: integer; tokens: integer[]; token_strs: string[] | null }
/** The text of tokens (vLLM). */
interface Prompt { prompt: string }
/** The special tokens, the chat template, and whatever else the tokenizer's configuration has. */
interface TokenizerFacts {
  tokenizer_class: string; bos_token: string | null; eos_token: string | null; pad_token: string | null
  unk_token: string | null; chat_template?: string | null
}
/** The score of a label. */
interface LabelScore { score: number; label: string }
/** A text by its place in the request (TEI). */
interface RankedText { index: integer; score: number; text?: string }
/** The text of a document. */
interface RerankedText { text: string }
/** A document by its place in the request. */
interface RerankedDocument { index: integer; relevance_score: number; document?: RerankedText }
/** The documents, the most relevant first. */
interface Reranked {
  id: string; model: string; usage: PromptUsage; results: RerankedDocument[]; meta: Record<string, unknown>
}
/** The score of a pair. */
interface PairScore { index: integer; object: "score"; score: number }
/** The scores of all pairs. */
interface PairScores {
  id: string; object: "list"; created: integer; model: string; data: PairScore[]; usage: PromptUsage
}
/** An adapter and its folder, in LMI's form. */
interface ListedAdapter { name: string; src: string; pin: boolean }
/** The list of adapters in LMI's form. */
interface Adapters { adapters: ListedAdapter[] }
/** A sentence that confirms a change of adapters. */
interface Change { status: string }
/** The state of a platform. */
interface PlatformHealth {
  service: "headrace"; status: string; version: string; region: string; asks_for_keys: boolean; object_storage: string
  gpus: string; uptime_s: integer
}
/** A worker, as Prometheus' service discovery reads it. */
interface TargetGroup { targets: string[]; labels: Record<string, string> }
