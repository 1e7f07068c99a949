package org.pocketune.trainer

import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.ThreadPoolExecutor
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.withContext

/**
 * The one thread that touches a runtime. Closing a runtime while it runs, or using it from two threads, kills the
 * process; here everything, the closing too, waits in one queue.
 */
internal class Owner(name: String) {
    @Volatile private var thread: Thread? = null

    private val isClosed = AtomicBoolean()

    // Never shut down, so that a coroutine that still has something to clean up always finds a thread; after `close`
    // the thread ends as soon as the queue is empty.
    private val executor = ThreadPoolExecutor(1, 1, 1, TimeUnit.MILLISECONDS, LinkedBlockingQueue()) { work ->
        // A daemon: a trainer that nobody closed keeps no process alive.
        Thread(work, name).also { it.isDaemon = true; thread = it }
    }

    val dispatcher: CoroutineDispatcher = executor.asCoroutineDispatcher()

    /** Runs on the thread. Throws [ClosedException]. */
    suspend fun <T> run(work: suspend () -> T): T {
        checkOpen()
        return withContext(dispatcher) {
            checkOpen()
            work()
        }
    }

    val isOpen: Boolean get() = !isClosed.get()

    /** To be called on the thread, before anything touches the runtime after a pause. */
    fun checkOpen() {
        if (!isOpen) throw ClosedException()
    }

    /** Waits for what runs, does [last] on the thread, and ends it. A second call only waits. */
    fun close(last: () -> Unit) {
        val isOwner = Thread.currentThread() === thread
        if (isClosed.compareAndSet(false, true)) {
            // A collector without a dispatcher of its own may call this from the thread itself, between two steps.
            if (isOwner) last() else executor.submit(last).get()
            executor.allowCoreThreadTimeOut(true)
        }
        if (!isOwner) thread?.join()
    }
}
