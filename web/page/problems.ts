import {
  BusyError,
  DivergedError,
  ForeignStateError,
  InputError,
  messageOf,
  NewerProgramError,
  ProgramError,
  RuntimeFailedError,
  StateError,
  StateVersionError,
  StorageError,
} from "../trainer/errors.ts";
import { Failure, type Problem } from "./protocol.ts";

/** What an error means for the user. */
export function problemOf(thrown: unknown): Problem {
  const error = thrown instanceof RuntimeFailedError ? (thrown.cause ?? thrown) : thrown;
  if (error instanceof Failure) return error.problem;
  if (error instanceof NewerProgramError || error instanceof StateVersionError) return "program-newer";
  if (error instanceof ProgramError) return "program-damaged";
  if (error instanceof ForeignStateError) return "state-foreign";
  if (error instanceof StateError) return "state-damaged";
  if (error instanceof StorageError) return "storage";
  if (error instanceof DivergedError) return "diverged";
  if (error instanceof InputError) return "input";
  return error instanceof BusyError ? "elsewhere" : "runtime";
}

/** An error as the page takes it. */
export function failureOf(error: unknown): Failure {
  return new Failure(problemOf(error), messageOf(error));
}
