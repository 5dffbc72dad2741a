/* POSIX AIO on TCP connections: reads, writes, lists, waits, cancelled requests and every way to be told, and prints what came of
 * each. The same on every stack. */
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LONG 20
#define SIGNAL (SIGRTMIN + 3)

static int listener;
static struct sockaddr_in local;

static void check(int ok, const char *what)
{
	if (!ok) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static const char *name(int error)
{
	return error == 0 ? "0" : strerrorname_np(error);
}

/* What a call that fails with -1 gives. */
static void tell(const char *what, int result)
{
	printf("%s: %d %s\n", what, result, result < 0 ? name(errno) : "");
}

static void pair(int *client, int *server)
{
	*client = socket(AF_INET, SOCK_STREAM, 0);
	check(connect(*client, (struct sockaddr *)&local, sizeof(local)) == 0, "connect");
	*server = accept(listener, NULL, NULL);
	check(*server >= 0, "accept");
}

static struct aiocb request(int fd, void *buf, size_t len)
{
	struct aiocb block = { .aio_fildes = fd, .aio_buf = buf, .aio_nbytes = len };

	block.aio_sigevent.sigev_notify = SIGEV_NONE;
	return block;
}

/* Whether a thread is in a call that waits; of the first thread only the wait for a word of memory counts. */
static int is_asleep(int task)
{
	char path[64], said[16] = "";
	int file, len;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", task);
	file = open(path, O_RDONLY);
	len = file < 0 ? -1 : (int)read(file, said, sizeof(said) - 1);
	close(file);
	/* One that has ended waits for nothing more. */
	if (len <= 0)
		return 1;
	return task == getpid() ? atoi(said) == SYS_futex && said[0] != 'r' : said[0] != 'r' && said[0] != '-';
}

/* Until all other threads wait, whatever each had to do before it: then none holds a lock of the C library's either. Whoever waited for
 * one at the first look runs, or has what it waited for, at the second. */
static void until_others_sleep(void)
{
	for (int quiet = 0; quiet < 2;) {
		DIR *tasks = opendir("/proc/self/task");
		struct dirent *task;
		int all = 1;

		check(tasks != NULL, "tasks");
		while ((task = readdir(tasks)) != NULL)
			if (atoi(task->d_name) > 0 && atoi(task->d_name) != gettid())
				all &= is_asleep(atoi(task->d_name));
		closedir(tasks);
		quiet = all ? quiet + 1 : 0;
		sched_yield();
	}
}

/* Until it is not in progress any more. */
static void finish(struct aiocb *block)
{
	const struct aiocb *const list[] = { block };
	struct timespec limit = { .tv_sec = LONG };

	check(aio_suspend(list, 1, &limit) == 0, "aio_suspend");
}

static void outcome(const char *what, struct aiocb *block)
{
	int error = aio_error(block);

	printf("%s: %s %zd\n", what, name(error), error == EINPROGRESS ? 0 : aio_return(block));
}

static void finished(const char *what, struct aiocb *block)
{
	finish(block);
	outcome(what, block);
}

/* A request that waits has a thread by the time that it shows as not to be cancelled. */
static void until_it_runs(struct aiocb *block)
{
	while (aio_cancel(block->aio_fildes, block) == AIO_CANCELED)
		check(aio_read(block) == 0, "aio_read");
}

static void reads_and_writes(void)
{
	int client, server, flags;
	char to[100] = "", more[100] = "";
	struct aiocb read_one, write_one, second;

	pair(&client, &server);
	write_one = request(client, "hello", 5);
	tell("aio_write", aio_write(&write_one));
	finished("write", &write_one);
	read_one = request(server, to, sizeof(to));
	tell("aio_read", aio_read(&read_one));
	finished("read", &read_one);
	printf("%s, and again %zd\n", to, aio_return(&read_one));

	/* One after another: what waits holds up what comes behind it. */
	read_one = request(server, to, sizeof(to));
	write_one = request(server, "held up", 7);
	second = request(server, more, 3);
	check(aio_read(&read_one) == 0 && aio_write(&write_one) == 0 && aio_read(&second) == 0, "requests");
	until_others_sleep();
	outcome("read that waits", &read_one);
	outcome("write behind it", &write_one);
	check(recv(client, more, sizeof(more), MSG_DONTWAIT) == -1, "nothing was written");
	check(write(client, "1", 1) == 1, "write");
	finished("read", &read_one);
	finished("write", &write_one);
	check(write(client, "23456", 5) == 5, "write");
	finished("second read", &second);
	check(recv(client, more, 7, MSG_WAITALL) == 7, "recv");

	/* Lower priorities come later. */
	check(recv(server, to, sizeof(to), 0) == 2, "recv");
	read_one = request(server, to, 1);
	write_one = request(server, "low", 3);
	write_one.aio_reqprio = 7;
	second = request(server, "high", 4);
	check(aio_read(&read_one) == 0 && aio_write(&write_one) == 0 && aio_write(&second) == 0, "requests");
	check(write(client, "1", 1) == 1, "write");
	memset(more, 0, sizeof(more));
	check(recv(client, more, 7, MSG_WAITALL) == 7, "recv");
	printf("by priority: %s\n", more);
	finish(&write_one);
	finish(&second);

	/* What the plain calls say is the error of the request. */
	flags = fcntl(server, F_GETFL);
	fcntl(server, F_SETFL, flags | O_NONBLOCK);
	read_one = request(server, to, 1);
	check(aio_read(&read_one) == 0, "aio_read");
	finished("nothing there", &read_one);
	fcntl(server, F_SETFL, flags);
	read_one.aio_offset = -1;
	check(aio_read(&read_one) == 0, "aio_read");
	finished("bad offset", &read_one);
	read_one = request(server, to, 1);
	read_one.aio_reqprio = -1;
	tell("bad priority", aio_read(&read_one));
	outcome("bad priority", &read_one);
	read_one.aio_reqprio = 21;
	tell("bad priority", aio_write(&read_one));
	read_one = request(server, to, 0);
	check(aio_read(&read_one) == 0, "aio_read");
	finished("nothing asked for", &read_one);
	read_one = request(server, NULL, 0);
	check(aio_fsync(O_SYNC, &read_one) == 0, "aio_fsync");
	finished("fsync", &read_one);
	check(aio_fsync(O_DSYNC, &read_one) == 0, "aio_fsync");
	finished("fdatasync", &read_one);
	tell("bad fsync", aio_fsync(12345, &read_one));
	check(write(client, "x", 1) == 1, "write");
	read_one = request(server, (void *)8, 1);
	check(aio_read(&read_one) == 0, "aio_read");
	finished("bad buffer", &read_one);
	second = request(server, mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 10);
	check(aio_write(&second) == 0, "aio_write");
	finished("bad buffer to write", &second);

	/* The peer's end, and what comes of a write behind it. No SIGPIPE comes: no thread of the program's writes. */
	check(read(server, to, 1) >= 0, "read");
	close(client);
	read_one = request(server, to, 1);
	check(aio_read(&read_one) == 0, "aio_read");
	finished("end", &read_one);
	do {
		write_one = request(server, "x", 1);
		check(aio_write(&write_one) == 0, "aio_write");
		finish(&write_one);
	} while (aio_error(&write_one) != EPIPE);
	outcome("write to nobody", &write_one);
	close(server);
}

static void waits(void)
{
	int client, server;
	char to[10], more[10];
	struct aiocb block, other;
	const struct aiocb *list[] = { NULL, &block, NULL, &other };
	struct timespec none = { 0 }, short_time = { .tv_nsec = 20000000 }, limit = { .tv_sec = LONG };

	pair(&client, &server);
	block = request(server, to, sizeof(to));
	other = request(client, more, sizeof(more));
	check(aio_read(&block) == 0 && aio_read(&other) == 0, "aio_read");
	tell("suspend, no time", aio_suspend(list, 4, &none));
	tell("suspend, some time", aio_suspend(list, 4, &short_time));
	tell("suspend, nobody", aio_suspend(list, 1, NULL));
	tell("suspend, bad count", aio_suspend(list, -1, NULL));
	check(write(client, "12", 2) == 2, "write");
	tell("suspend", aio_suspend(list, 4, &limit));
	outcome("one", &block);
	outcome("other", &other);
	tell("suspend with one that is done", aio_suspend(list, 4, &limit));
	check(write(server, "123", 3) == 3, "write");
	finished("other", &other);
	close(client);
	close(server);
}

static int to_wake;
static volatile int has_come;

static void come(int signal)
{
	(void)signal;
	has_come = 1;
}

static void *interrupt(void *thread)
{
	until_others_sleep();
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	while (!has_come)
		sched_yield();
	/* What is interrupted ends before anything else ends it, and this thread is waited for; what is restarted waits again. */
	until_others_sleep();
	check(write(to_wake, "1", 1) == 1, "write");
	return NULL;
}

static void begin_interrupt(pthread_t *thread)
{
	static pthread_t me;

	me = pthread_self();
	has_come = 0;
	check(pthread_create(thread, NULL, interrupt, &me) == 0, "pthread_create");
}

static void interrupted(void)
{
	int client, server;
	char to[10];
	struct aiocb block;
	const struct aiocb *list[] = { &block };
	struct aiocb *const all[] = { &block };
	struct sigaction action = { .sa_handler = come };
	pthread_t thread;
	struct timespec limit = { .tv_sec = LONG };

	pair(&client, &server);
	sigaction(SIGUSR1, &action, NULL);
	to_wake = client;
	block = request(server, to, sizeof(to));
	check(aio_read(&block) == 0, "aio_read");
	begin_interrupt(&thread);
	tell("interrupted", aio_suspend(list, 1, NULL));
	pthread_join(thread, NULL);
	finished("read", &block);
	/* A handler that restarts calls. (The C library forgets nothing of a list whose wait was interrupted, and crashes later.) */
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &action, NULL);
	check(aio_read(&block) == 0, "aio_read");
	begin_interrupt(&thread);
	tell("restarted", aio_suspend(list, 1, NULL));
	pthread_join(thread, NULL);
	outcome("read", &block);
	check(aio_read(&block) == 0, "aio_read");
	begin_interrupt(&thread);
	tell("interrupted in time", aio_suspend(list, 1, &limit));
	pthread_join(thread, NULL);
	finished("read", &block);
	block.aio_lio_opcode = LIO_READ;
	begin_interrupt(&thread);
	tell("restarted list", lio_listio(LIO_WAIT, all, 1, NULL));
	pthread_join(thread, NULL);
	outcome("read", &block);
	close(client);
	close(server);
}

static void cancelled(void)
{
	int client, server;
	char to[10], more[10];
	struct aiocb block, second, third;

	pair(&client, &server);
	tell("cancel, nothing there", aio_cancel(server, NULL));
	block = request(server, to, sizeof(to));
	second = request(server, more, sizeof(more));
	third = request(server, "x", 1);
	check(aio_read(&block) == 0, "aio_read");
	until_it_runs(&block);
	check(aio_read(&second) == 0 && aio_write(&third) == 0, "requests");
	tell("cancel one that runs", aio_cancel(server, &block));
	tell("cancel one that waits", aio_cancel(server, &second));
	outcome("it", &second);
	tell("cancel one that is done", aio_cancel(server, &second));
	tell("cancel of another descriptor", aio_cancel(client, &block));
	tell("cancel all", aio_cancel(server, NULL));
	outcome("it", &third);
	outcome("the first", &block);
	check(write(client, "1", 1) == 1, "write");
	finished("the first", &block);
	tell("cancel, all done", aio_cancel(server, NULL));
	tell("cancel, no descriptor", aio_cancel(-1, NULL));
	close(client);
	close(server);
	tell("cancel, closed", aio_cancel(server, NULL));
}

static sem_t told;
static int value;

/* The signal is for the main thread. */
static void on_done(union sigval with)
{
	sigset_t ours, mask;

	sigemptyset(&ours);
	sigaddset(&ours, SIGNAL);
	pthread_sigmask(SIG_BLOCK, &ours, &mask);
	__atomic_fetch_add(&value, sigismember(&mask, SIGUSR1) || sigismember(&mask, SIGTERM) ? 1000 : with.sival_int,
			   __ATOMIC_SEQ_CST);
	sem_post(&told);
}

static void on_done_and_exit(union sigval with)
{
	on_done(with);
	pthread_exit(NULL);
}

static void by_signal(const char *what)
{
	siginfo_t info;
	sigset_t set;
	struct timespec limit = { .tv_sec = LONG };

	sigemptyset(&set);
	sigaddset(&set, SIGNAL);
	check(sigtimedwait(&set, &info, &limit) == SIGNAL, "sigtimedwait");
	printf("%s: code %d value %d pid %d uid %d\n", what, info.si_code, info.si_value.sival_int,
	       info.si_pid == getpid(), info.si_uid == getuid());
}

static void by_thread(const char *what)
{
	struct timespec limit;

	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += LONG;
	check(sem_timedwait(&told, &limit) == 0, "sem_timedwait");
	printf("%s: value %d\n", what, __atomic_exchange_n(&value, 0, __ATOMIC_SEQ_CST));
}

static struct sigevent signalled(int with)
{
	return (struct sigevent){ .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGNAL, .sigev_value.sival_int = with };
}

static struct sigevent called(void (*function)(union sigval), int with, pthread_attr_t *attributes)
{
	return (struct sigevent){ .sigev_notify = SIGEV_THREAD, .sigev_notify_function = function,
				  .sigev_notify_attributes = attributes, .sigev_value.sival_int = with };
}

static void notified(void)
{
	int client, server;
	char to[10];
	struct aiocb block, behind;
	pthread_attr_t attributes;

	pair(&client, &server);
	block = request(client, "1", 1);
	block.aio_sigevent = signalled(7);
	check(aio_write(&block) == 0, "aio_write");
	by_signal("signal");
	outcome("write", &block);
	block.aio_sigevent = called(on_done, 8, NULL);
	check(aio_write(&block) == 0, "aio_write");
	by_thread("thread");
	outcome("write", &block);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, 1 << 20);
	block.aio_sigevent = called(on_done_and_exit, 9, &attributes);
	check(aio_write(&block) == 0, "aio_write");
	by_thread("thread with attributes");
	/* No signal's number: it is none. */
	memset(&block.aio_sigevent, 0, sizeof(block.aio_sigevent));
	check(aio_write(&block) == 0, "aio_write");
	finished("no signal", &block);
	block.aio_sigevent = signalled(0);
	block.aio_sigevent.sigev_signo = 1000;
	check(aio_write(&block) == 0, "aio_write");
	finished("bad signal", &block);
	check(recv(server, to, 5, MSG_WAITALL) == 5, "recv");
	/* A request that is cancelled is over, too. */
	block = request(server, to, 1);
	check(aio_read(&block) == 0, "aio_read");
	until_it_runs(&block);
	behind = request(server, to, 1);
	behind.aio_sigevent = signalled(10);
	check(aio_read(&behind) == 0, "aio_read");
	tell("cancel", aio_cancel(server, &behind));
	by_signal("cancelled");
	outcome("it", &behind);
	close(client);
	finished("read", &block);
	close(server);
}

static struct aiocb listed(int operation, int fd, void *buf, size_t len)
{
	struct aiocb block = request(fd, buf, len);

	block.aio_lio_opcode = operation;
	return block;
}

static void lists(void)
{
	int client, server, file = open(".", O_TMPFILE | O_RDWR, 0600);
	char to[10] = "", of_file[10] = "", more[10];
	struct aiocb blocks[5];
	struct aiocb *list[7] = { &blocks[0], NULL, &blocks[1], &blocks[2], &blocks[3], &blocks[4] };
	const struct aiocb *both[] = { &blocks[0], &blocks[1] };
	struct timespec short_time = { .tv_nsec = 20000000 }, limit = { .tv_sec = LONG };
	struct sigevent event;

	check(file >= 0 && pwrite(file, "of a file", 9, 0) == 9, "file");
	pair(&client, &server);
	blocks[0] = listed(LIO_WRITE, client, "hello", 5);
	blocks[1] = listed(LIO_READ, server, to, 5);
	tell("sockets, waiting", lio_listio(LIO_WAIT, list, 3, NULL));
	outcome("write", &blocks[0]);
	outcome("read", &blocks[1]);
	printf("%s\n", to);
	for (int waits = 0; waits < 2; waits++) {
		memset(of_file, 0, sizeof(of_file));
		blocks[0] = listed(LIO_WRITE, client, "HELLO", 5);
		blocks[1] = listed(LIO_READ, server, to, 5);
		blocks[2] = listed(LIO_READ, file, of_file, 9);
		blocks[3] = listed(LIO_NOP, server, to, 5);
		blocks[4] = listed(LIO_WRITE, file, "another", 7);
		blocks[4].aio_offset = 100;
		event = waits ? called(on_done, 11, NULL) : signalled(12);
		tell("mixed", lio_listio(waits ? LIO_WAIT : LIO_NOWAIT, list, 6, &event));
		if (!waits)
			by_signal("all done");
		for (int n = 0; n < 5; n++)
			if (n != 3)
				outcome("of the list", &blocks[n]);
		printf("%s %s\n", to, of_file);
	}
	/* In a thread, once the last one is done. */
	blocks[0] = listed(LIO_READ, server, to, 5);
	blocks[1] = listed(LIO_READ, file, of_file, 9);
	blocks[0].aio_sigevent = called(on_done, 13, NULL);
	event = called(on_done, 14, NULL);
	tell("mixed", lio_listio(LIO_NOWAIT, list, 3, &event));
	finish(&blocks[1]);
	check(sem_trywait(&told) == -1, "not yet");
	check(write(client, "1", 1) == 1, "write");
	check(sem_wait(&told) == 0, "sem_wait");
	by_thread("one, and all");

	/* Waiting for both kinds, of which one is done at last. */
	blocks[0] = request(server, to, 5);
	check(aio_read(&blocks[0]) == 0, "aio_read");
	int pipes[2];
	check(pipe(pipes) == 0, "pipe");
	blocks[1] = request(pipes[0], more, 5);
	check(aio_read(&blocks[1]) == 0, "aio_read");
	tell("both wait", aio_suspend(both, 2, &short_time));
	check(write(pipes[1], "1", 1) == 1, "write");
	tell("the pipe's is done", aio_suspend(both, 2, &limit));
	outcome("socket", &blocks[0]);
	outcome("pipe", &blocks[1]);
	check(aio_read(&blocks[1]) == 0, "aio_read");
	check(write(client, "1", 1) == 1, "write");
	tell("the socket's is done", aio_suspend(both, 2, &limit));
	outcome("socket", &blocks[0]);
	outcome("pipe", &blocks[1]);
	check(write(pipes[1], "1", 1) == 1, "write");
	finished("pipe", &blocks[1]);

	/* What fails of a list. */
	blocks[0] = listed(LIO_WRITE, client, "x", 1);
	blocks[1] = listed(LIO_READ, -1, to, 5);
	tell("one fails", lio_listio(LIO_WAIT, list, 3, NULL));
	outcome("write", &blocks[0]);
	outcome("read", &blocks[1]);
	blocks[1] = listed(12, server, to, 5);
	tell("one is nothing", lio_listio(LIO_WAIT, list, 3, NULL));
	outcome("nothing", &blocks[1]);
	blocks[0] = listed(LIO_WRITE, client, "x", 1);
	blocks[1] = listed(LIO_WRITE, client, "x", 1);
	blocks[1].aio_reqprio = -1;
	tell("one is refused", lio_listio(LIO_NOWAIT, list, 3, NULL));
	finished("write", &blocks[0]);
	outcome("refused", &blocks[1]);
	blocks[0].aio_reqprio = -1;
	event = signalled(15);
	tell("all are refused", lio_listio(LIO_NOWAIT, list, 3, &event));
	by_signal("told all the same");
	tell("bad mode", lio_listio(7, list, 3, NULL));
	tell("nobody", lio_listio(LIO_WAIT, list, 0, NULL));
	close(client);
	close(server);
	close(file);
}

/* More than there are threads: what finds none waits, and is run. */
static void many(void)
{
	enum { PAIRS = 30 };
	int client[PAIRS], server[PAIRS], done = 0;
	char to[PAIRS];
	struct aiocb blocks[PAIRS];

	for (int n = 0; n < PAIRS; n++) {
		pair(&client[n], &server[n]);
		blocks[n] = request(server[n], &to[n], 1);
		check(aio_read(&blocks[n]) == 0, "aio_read");
	}
	check(write(client[PAIRS - 1], "1", 1) == 1, "write");
	for (int n = 0; n < PAIRS - 1; n++)
		check(write(client[n], "1", 1) == 1, "write");
	for (int n = 0; n < PAIRS; n++) {
		finish(&blocks[n]);
		done += aio_error(&blocks[n]) == 0 && aio_return(&blocks[n]) == 1;
	}
	printf("%d are done\n", done);
	for (int n = 0; n < PAIRS; n++) {
		close(client[n]);
		close(server[n]);
	}
}

static void closed(void)
{
	int client, server;
	char to[10], more[10];
	struct aiocb block, behind;

	pair(&client, &server);
	block = request(server, to, sizeof(to));
	behind = request(server, "x", 1);
	check(aio_read(&block) == 0, "aio_read");
	until_it_runs(&block);
	/* The descriptor's number is looked up by then. */
	until_others_sleep();
	check(aio_write(&behind) == 0, "aio_write");
	close(server);
	tell("close, cancel", aio_cancel(server, NULL));
	check(write(client, "12", 2) == 2, "write");
	finished("read of one that was closed", &block);
	finished("write behind it", &behind);
	tell("its end", read(client, more, sizeof(more)));
	close(client);
}

/* `works`: the child makes a request of its own. With the C library's AIO it may wait for a thread that only its parent has. */
static void forked(int works)
{
	int client, server, status;
	char to[10], more[10];
	struct aiocb block, mine;

	pair(&client, &server);
	block = request(server, to, sizeof(to));
	check(aio_read(&block) == 0, "aio_read");
	fflush(stdout);
	/* What another thread holds of the C library's is held in the child for ever. */
	until_others_sleep();
	pid_t child = fork();
	if (child == 0) {
		/* None of its parent's requests is its own. */
		mine = request(client, "child", 5);
		if (works) {
			check(aio_write(&mine) == 0, "aio_write");
			finish(&mine);
		} else {
			check(write(client, "child", 5) == 5, "write");
		}
		outcome("parent's read in the child", &block);
		fflush(stdout);
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child && status == 0, "child");
	finished("parent's read", &block);
	block = request(client, more, sizeof(more));
	check(aio_read(&block) == 0 && write(server, "x", 1) == 1, "requests");
	finished("after the child", &block);
	close(client);
	close(server);
}

int main(int argc, char **argv)
{
	socklen_t len = sizeof(local);
	sigset_t set;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGNAL);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sem_init(&told, 0, 0);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	local = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	check(bind(listener, (struct sockaddr *)&local, sizeof(local)) == 0 && listen(listener, 50) == 0, "listen");
	check(getsockname(listener, (struct sockaddr *)&local, &len) == 0, "getsockname");
	if (argc > 1) {
		check(strcmp(argv[1], "child") == 0, "usage");
		forked(1);
		return 0;
	}
	reads_and_writes();
	waits();
	interrupted();
	cancelled();
	notified();
	lists();
	many();
	closed();
	forked(0);
	return 0;
}
