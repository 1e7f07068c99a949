/* Invokes programs with the arm64 library of Android, through its C API: each once to warm up, and once between the marks
   that scripts/arm64/instructions.c counts between.
       runner FOLDER_OF_THE_LIBRARIES FILE[:SIGNATURE]... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Code for bionic reads its stack guard 40 bytes into the thread's block, where the executable's own variables begin after
   16: with these there, it is a constant. */
__thread volatile char guard[64] __attribute__((aligned(16))) = {1};

static void *library;
#define FUNCTION(type, name, ...) type (*name)(__VA_ARGS__) = dlsym(library, #name)
enum { FLOAT32 = 1, MARK = 5000 };
struct xnnpack { int threads; char more[252]; }; /* larger than the library's own, which it fills */

static void fail(const char *file, const char *what) { fprintf(stderr, "android: %s: %s\n", file, what); exit(1); }

int main(int count, char **words) {
  const char *names[] = {"libc.so", "libm.so", "libdl.so", "liblog.so", "libtensorflowlite_jni.so"};
  char path[4096];
  guard[1] = 1;
  for (int i = 0; i < 5; i++) {
    snprintf(path, sizeof path, "%s/%s", words[1], names[i]);
    if (!(library = dlopen(path, RTLD_NOW | RTLD_GLOBAL))) fail(path, dlerror());
  }
  FUNCTION(void *, TfLiteModelCreateFromFile, const char *);
  FUNCTION(void *, TfLiteInterpreterOptionsCreate, void);
  FUNCTION(struct xnnpack, TfLiteXNNPackDelegateOptionsDefault, void);
  FUNCTION(void *, TfLiteXNNPackDelegateCreate, struct xnnpack *);
  FUNCTION(void, TfLiteInterpreterOptionsAddDelegate, void *, void *);
  FUNCTION(void, TfLiteInterpreterOptionsSetNumThreads, void *, int);
  FUNCTION(void *, TfLiteInterpreterCreate, void *, void *);
  FUNCTION(void *, TfLiteInterpreterGetSignatureRunner, void *, const char *);
  FUNCTION(int, TfLiteSignatureRunnerAllocateTensors, void *);
  FUNCTION(size_t, TfLiteSignatureRunnerGetInputCount, void *);
  FUNCTION(const char *, TfLiteSignatureRunnerGetInputName, void *, int);
  FUNCTION(void *, TfLiteSignatureRunnerGetInputTensor, void *, const char *);
  FUNCTION(int, TfLiteSignatureRunnerInvoke, void *);
  FUNCTION(void, TfLiteSignatureRunnerDelete, void *);
  FUNCTION(void, TfLiteInterpreterDelete, void *);
  FUNCTION(void, TfLiteModelDelete, void *);
  FUNCTION(int, TfLiteTensorType, void *);
  FUNCTION(void *, TfLiteTensorData, void *);
  FUNCTION(size_t, TfLiteTensorByteSize, void *);
  FUNCTION(int, TfLiteInterpreterAllocateTensors, void *);
  FUNCTION(int, TfLiteInterpreterGetInputTensorCount, void *);
  FUNCTION(void *, TfLiteInterpreterGetInputTensor, void *, int);
  FUNCTION(int, TfLiteInterpreterInvoke, void *);
  void *options = TfLiteInterpreterOptionsCreate();
  TfLiteInterpreterOptionsSetNumThreads(options, 1);
  /* XNNPACK as Java has it. */
  struct xnnpack xnnpack = TfLiteXNNPackDelegateOptionsDefault();
  xnnpack.threads = 1;
  if (!getenv("XNN") || strcmp(getenv("XNN"), "0"))
    TfLiteInterpreterOptionsAddDelegate(options, TfLiteXNNPackDelegateCreate(&xnnpack));
  for (int i = 2; i < count; i++) {
    char *signature = strchr(words[i], ':');
    if (signature) *signature++ = 0;
    void *model = TfLiteModelCreateFromFile(words[i]), *interpreter = model ? TfLiteInterpreterCreate(model, options) : NULL;
    if (!interpreter) fail(words[i], "the library does not take the program");
    void *runner = signature ? TfLiteInterpreterGetSignatureRunner(interpreter, signature) : NULL;
    if (signature && !runner) fail(words[i], "no such signature");
    if (runner ? TfLiteSignatureRunnerAllocateTensors(runner) : TfLiteInterpreterAllocateTensors(interpreter)) fail(words[i], "no room");
    int inputs = runner ? TfLiteSignatureRunnerGetInputCount(runner) : TfLiteInterpreterGetInputTensorCount(interpreter);
    for (int k = 0; k < inputs; k++) {
      const char *name = runner ? TfLiteSignatureRunnerGetInputName(runner, k) : "";
      void *tensor = runner ? TfLiteSignatureRunnerGetInputTensor(runner, name) : TfLiteInterpreterGetInputTensor(interpreter, k);
      size_t bytes = TfLiteTensorByteSize(tensor);
      float *data = memset(TfLiteTensorData(tensor), 0, bytes);
      /* The weights stay as they are: infinities would be slow to emulate. */
      if (TfLiteTensorType(tensor) == FLOAT32 && strcmp(name, "learning_rate"))
        for (size_t j = 0; j < bytes / sizeof *data; j++) data[j] = 0.5f + rand() % 1000 / 1000.f;
    }
    for (int run = 0; run < 2; run++) {
      if (run) syscall(MARK, 1);
      if (runner ? TfLiteSignatureRunnerInvoke(runner) : TfLiteInterpreterInvoke(interpreter)) fail(words[i], "it does not run");
      if (run) syscall(MARK, 2);
    }
    if (runner) TfLiteSignatureRunnerDelete(runner);
    TfLiteInterpreterDelete(interpreter);
    TfLiteModelDelete(model);
  }
  return 0;
}
